// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTarRoundTrip(t *testing.T) {
	b := newBench(t)
	write(t, b.at("src/a/b/file"), strings.Repeat("content", 10000))
	write(t, b.at("src/bad\xffname"), "odd")
	write(t, b.at("src/"+strings.Repeat("long", 60)), "")
	link(t, "../outside", b.at("src/a/link"))
	old := time.Unix(1e9, 0)
	err := errors.Join(
		os.Mkdir(b.at("src/empty"), 0o755), os.Link(b.at("src/a/b/file"), b.at("src/hard")), unix.Mkfifo(b.at("src/pipe"), 0o600),
		os.Chmod(b.at("src/a/b/file"), 0o751), os.Chtimes(b.at("src/a/b/file"), old, old), os.Chmod(b.at("src/a/b"), 0o500),
	)
	if err != nil {
		t.Fatal(err)
	}
	archive := b.get("/files/tar", "path", b.at("src")).want(200)
	same(t, archive.header.Get("Content-Type"), "application/x-tar")
	var result struct{ Entries int }
	b.do("POST", query("/files/tar", "path", b.at("new/dest")), bytes.NewReader(archive.body), nil).want(200).decode(&result)
	same(t, result.Entries, 9)
	if out, err := exec.Command("diff", "-r", "--no-dereference", "--exclude=pipe", b.at("src"), b.at("new/dest")).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	var infos map[string]FileInfo
	b.get("/files/info", "path", b.at("new/dest/a/b/file"), "path", b.at("new/dest/a/b"), "path", b.at("new/dest/pipe")).want(200).decode(&infos)
	same(t, words(infos[b.at("new/dest/a/b/file")].Mode, infos[b.at("new/dest/a/b/file")].ModifiedAt), "751 2001-09-09T01:46:40.000000Z")
	same(t, words(infos[b.at("new/dest/a/b")].Mode, infos[b.at("new/dest/pipe")].Type), "500 other")
	first, err1 := os.Stat(b.at("new/dest/hard"))
	second, err2 := os.Stat(b.at("new/dest/a/b/file"))
	if err1 != nil || err2 != nil || !os.SameFile(first, second) {
		t.Fatal(err1, err2)
	}
	listing := exec.Command("tar", "-t")
	listing.Stdin = bytes.NewReader(archive.body)
	if out, err := listing.CombinedOutput(); err != nil || strings.Count(string(out), "\n") != 9 {
		t.Fatalf("%v %s", err, out)
	}
	sameList(t, leftovers(t, b.dir))
}

func TestTarOfOneFile(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "content")
	archive := b.get("/files/tar", "path", b.at("f")).want(200)
	b.do("POST", query("/files/tar", "path", b.at("dest")), bytes.NewReader(archive.body), nil).want(200)
	same(t, read(t, b.at("dest/f")), "content")
	b.get("/files/tar", "path", b.at("none")).wantError(404, "FILE_NOT_FOUND")
	b.do("POST", query("/files/tar", "path", b.at("f")), bytes.NewReader(archive.body), nil).wantError(409, CodeConflict)
}

// archiveOf builds an archive that no friendly program would.
func archiveOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, header := range headers {
		content := ""
		if header.Typeflag == 0 {
			header.Typeflag, content = tar.TypeReg, "evil"
			header.Size = int64(len(content))
		}
		header.Mode |= 0o644
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestTarNeverLeavesItsDirectory(t *testing.T) {
	b := newBench(t)
	write(t, b.at("outside/precious"), "precious")
	link(t, b.at("outside"), b.at("dest-link"))
	unpack := func(dest string, headers ...tar.Header) answer {
		return b.do("POST", query("/files/tar", "path", b.at(dest)), bytes.NewReader(archiveOf(t, headers...)), nil)
	}
	for _, name := range []string{"../outside/precious", "/etc/casulo-test", "a/../../outside/precious", "..", "../.."} {
		unpack("dest", tar.Header{Name: name}).wantError(400, "INVALID_FILE_CONTENT")
		unpack("dest", tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: name}).wantError(400, "INVALID_FILE_CONTENT")
	}
	unpack("dest", tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, tar.Header{Name: "way/precious"}).wantError(409, CodeConflict)
	unpack("dest", tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "way/precious"}).wantError(409, CodeConflict)
	unpack("dest", tar.Header{Name: "way", Typeflag: tar.TypeDir}).wantError(409, CodeConflict)
	unpack("dest", tar.Header{Name: "device", Typeflag: tar.TypeChar}).wantError(400, "INVALID_FILE_CONTENT")
	unpack("dest", tar.Header{Name: "way"}).want(200)
	same(t, read(t, b.at("dest/way")), "evil")
	unpack("dest", tar.Header{Name: "./a/./b"}, tar.Header{Name: "suid", Mode: 0o6755}).want(200)
	same(t, read(t, b.at("dest/a/b")), "evil")
	st, err := os.Stat(b.at("dest/suid"))
	if err != nil || st.Mode() != 0o755 {
		t.Fatal(st.Mode(), err)
	}
	unpack("dest", tar.Header{Name: "a"}).wantError(409, CodeConflict)
	same(t, read(t, b.at("outside/precious")), "precious")
	sameList(t, leftovers(t, b.dir))
}

func TestTarCutShortIsRefused(t *testing.T) {
	b := newBench(t)
	write(t, b.at("src/f"), strings.Repeat("x", 100000))
	archive := b.get("/files/tar", "path", b.at("src")).want(200).body
	for _, cut := range []int{0, 512, 1000, 1024, 1536, 50000, len(archive) - 1024} {
		b.do("POST", query("/files/tar", "path", b.at("dest")), bytes.NewReader(archive[:cut]), nil).wantError(400, "INVALID_FILE_CONTENT")
	}
	b.do("POST", query("/files/tar", "path", b.at("dest")), strings.NewReader("no archive at all, but long enough"+strings.Repeat("!", 600)), nil).
		wantError(400, "INVALID_FILE_CONTENT")
	sameList(t, leftovers(t, b.dir))
}

func TestTarOnAFullDisk(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	disk := smallDisk(t, "1m")
	write(t, b.at("src/f"), strings.Repeat("x", 4<<20))
	archive := b.get("/files/tar", "path", b.at("src")).want(200).body
	b.do("POST", query("/files/tar", "path", disk), bytes.NewReader(archive), nil).wantError(507, CodeNoSpace)
	sameList(t, leftovers(t, disk))
}

func FuzzLocalName(f *testing.F) {
	for _, seed := range []string{"a/b", "../a", "/a", "a/../..", "./", "a//b", ".."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		clean, err := localName(name)
		if err == nil && (clean == "" || clean == ".." || strings.HasPrefix(clean, "/") || strings.HasPrefix(clean, "../") || strings.Contains("/"+clean+"/", "/../")) {
			t.Fatalf("%q became %q", name, clean)
		}
	})
}

// FuzzUnpack builds archives of three entries that may lead into each other and looks for anything beside the target.
func FuzzUnpack(f *testing.F) {
	f.Add("way", "way/x", "..", byte(tar.TypeSymlink))
	f.Add("a", "a/b", "../../x", byte(tar.TypeLink))
	f.Add("d/", "./d/../e", "/tmp", byte(tar.TypeDir))
	b := newBench(f)
	f.Fuzz(func(t *testing.T, first, second, target string, kind byte) {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, header := range []tar.Header{
			{Name: first, Linkname: target, Typeflag: kind}, {Name: second, Typeflag: tar.TypeReg}, {Name: target, Typeflag: tar.TypeReg},
		} {
			header.Mode = 0o755
			if w.WriteHeader(&header) != nil {
				return
			}
		}
		if w.Close() != nil {
			return
		}
		request := httptest.NewRequest("POST", query("/files/tar", "path", b.at("box/in")), &archive)
		c := &call{service: b.service, writer: httptest.NewRecorder(), request: request}
		_ = c.unpack()
		if entries, err := os.ReadDir(b.at("box")); err != nil || len(entries) != 1 {
			t.Fatalf("something got out: %v %v", entries, err)
		}
		if err := removeTree(request.Context(), b.at("box/in")); err != nil {
			t.Fatal(err)
		}
	})
}
