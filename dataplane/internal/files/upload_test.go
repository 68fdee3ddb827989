// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestB021UploadSizes(t *testing.T) {
	b := newBench(t)
	sizes := []int{0, 1, 17 << 10, 18 << 10, 19 << 10, 64 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 20 << 20}
	for i, size := range sizes {
		content := make([]byte, size)
		for j := range content {
			content[j] = byte(j * 7 >> 3)
		}
		p := b.at(fmt.Sprintf("f%d", size))
		if i%2 == 0 {
			p = b.at("missing", fmt.Sprint(size), "f")
		}
		b.upload("", file{map[string]any{"path": p, "mode": 644}, content}).want(200)
		same(t, sha256.Sum256([]byte(read(t, p))), sha256.Sum256(content))
		same(t, string(b.get("/files/download", "path", p).want(200).body), string(content))
	}
	sameList(t, leftovers(t, b.dir))
}

func TestUploadManyFilesInOneRequest(t *testing.T) {
	b := newBench(t)
	var all []file
	for i := range 300 {
		all = append(all, put(b.at(fmt.Sprintf("d%d/f%d", i%7, i)), fmt.Sprint("content ", i)))
	}
	all = append(all, put(b.at("d0/f0"), "the later one wins"))
	b.upload("", all...).want(200)
	same(t, read(t, b.at("d0/f0")), "the later one wins")
	for i := 1; i < 300; i++ {
		same(t, read(t, b.at(fmt.Sprintf("d%d/f%d", i%7, i))), fmt.Sprint("content ", i))
	}
	sameList(t, leftovers(t, b.dir))
}

func TestUploadModesAndOwners(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	p := b.at("f")
	b.upload("", file{map[string]any{"path": p, "mode": 4750, "owner": "1234", "group": "2345"}, nil}).want(200)
	var infos map[string]FileInfo
	b.get("/files/info", "path", p).want(200).decode(&infos)
	same(t, words(infos[p].Mode, infos[p].Owner, infos[p].Group, infos[p].Type), "4750 1234 2345 file")
	b.upload("", file{map[string]any{"path": p}, []byte("x")}).want(200)
	b.get("/files/info", "path", p).want(200).decode(&infos)
	same(t, words(infos[p].Mode, infos[p].Owner, infos[p].Group, infos[p].Size), "4750 1234 2345 1")
	b.upload("", file{map[string]any{"path": b.at("g")}, nil}).want(200)
	b.get("/files/info", "path", b.at("g")).want(200).decode(&infos)
	same(t, int(infos[b.at("g")].Mode), 644)
	b.upload("", file{map[string]any{"path": b.at("h"), "owner": "no-such-user"}, nil}).wantError(400, "INVALID_REQUEST_BODY")
	b.upload("", file{map[string]any{"path": b.at("h"), "mode": 999}, nil}).wantError(400, "INVALID_FILE_METADATA")
	if _, err := os.Lstat(b.at("h")); err == nil {
		t.Fatal("a refused upload left a file")
	}
	sameList(t, leftovers(t, b.dir))
}

func TestB023InterruptedUploadKeepsTheOldFile(t *testing.T) {
	b := newBench(t)
	old := strings.Repeat("old", 1<<18)
	write(t, b.at("f"), old)
	body, kind := form(put(b.at("f"), strings.Repeat("new", 4<<20)))
	for _, framing := range []string{fmt.Sprintf("Content-Length: %d", len(body)), "Transfer-Encoding: chunked"} {
		connection, err := net.Dial("tcp", b.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(connection, "POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n%s\r\n\r\n", kind, framing)
		half := body[:len(body)/2]
		if strings.HasPrefix(framing, "Transfer") {
			fmt.Fprintf(connection, "%x\r\n%s\r\n", len(half), half)
		} else if _, err := connection.Write(half); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return len(leftovers(t, b.dir)) == 1 })
		connection.Close()
		waitFor(t, func() bool { return len(leftovers(t, b.dir)) == 0 })
		same(t, read(t, b.at("f")), old)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatal("waited for too long")
}

func TestB023FullDiskKeepsTheOldFile(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	disk := smallDisk(t, "4m")
	write(t, filepath.Join(disk, "f"), "old")
	answer := b.upload("", put(filepath.Join(disk, "f"), strings.Repeat("x", 16<<20))).wantError(507, "NO_SPACE")
	if !strings.Contains(string(answer.body), "no space left") {
		t.Fatalf("%s", answer.body)
	}
	same(t, read(t, filepath.Join(disk, "f")), "old")
	sameList(t, leftovers(t, disk))
	b.upload("", put(filepath.Join(disk, "f"), "fits")).want(200)
	same(t, read(t, filepath.Join(disk, "f")), "fits")
}

func TestB023LeftoversGoAtTheNextStart(t *testing.T) {
	b := newBench(t)
	write(t, b.at("keep"), "x")
	for _, dir := range []string{b.at("one"), b.at("two")} {
		write(t, filepath.Join(dir, "target"), "old")
		unfinished, err := b.service.stage(filepath.Join(dir, "target"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unfinished.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.service.journal.beginTree(b.at("tree")); err != nil {
		t.Fatal(err)
	}
	write(t, b.at("tree/a/b", b.service.journal.newName()), "half")
	write(t, b.at("two", partPrefix+"of-another-sandbox"), "not ours")
	same(t, len(leftovers(t, b.dir)), 4)
	b.start() // the first service is as good as killed: nothing of it runs
	sameList(t, leftovers(t, b.dir), b.at("two", partPrefix+"of-another-sandbox"))
	same(t, read(t, b.at("one/target")), "old")
	st, err := b.service.journal.file.Stat()
	if err != nil || st.Size() != 0 {
		t.Fatal(st, err)
	}
}

func TestB027UploadOverLinksAndDirectories(t *testing.T) {
	b := newBench(t)
	write(t, b.at("outside"), "untouched")
	link(t, b.at("outside"), b.at("link"))
	link(t, "/", b.at("d"))
	link(t, b.at("nowhere"), b.at("dangling"))
	if err := os.Mkdir(b.at("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.upload("", put(b.at("link"), "new")).want(200)
	b.upload("", put(b.at("dangling"), "new")).want(200)
	for _, name := range []string{"link", "dangling"} {
		st, err := os.Lstat(b.at(name))
		if err != nil || !st.Mode().IsRegular() {
			t.Fatal(name, st, err)
		}
		same(t, read(t, b.at(name)), "new")
	}
	same(t, read(t, b.at("outside")), "untouched")
	b.upload("", put(b.at("d"), "new")).wantError(409, "FILE_CONFLICT")
	b.upload("", put(b.at("dir"), "new")).wantError(409, "FILE_CONFLICT")
	b.upload("", put(b.at("newdir")+"/", "new")).wantError(409, "FILE_CONFLICT")
	b.upload("", put(b.at("outside", "child"), "new")).wantError(409, "FILE_CONFLICT")
	b.upload("", put("/", "new")).wantError(409, "FILE_CONFLICT")
	b.upload("", put(b.at("outside"), "replaced")).want(200)
	same(t, read(t, b.at("outside")), "replaced")
	if err := unix.Mkfifo(b.at("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.upload("", put(b.at("pipe"), "new")).wantError(409, "FILE_CONFLICT")
	b.get("/files/download", "path", b.at("pipe")).wantError(400, "INVALID_FILE")
	sameList(t, leftovers(t, b.dir))
}

func TestRefusedBigUploadIsStillAnswered(t *testing.T) {
	b := newBench(t)
	answer := b.upload("", put(b.at(), strings.Repeat("x", 48<<20)))
	answer.wantError(409, "FILE_CONFLICT")
}

func TestUploadOntoAMountPointRewritesIt(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	write(t, b.at("etc/hosts"), "old hosts, longer than the new ones")
	write(t, b.at("backing"), "old hosts, longer than the new ones")
	if err := unix.Mount(b.at("backing"), b.at("etc/hosts"), "", unix.MS_BIND, ""); err != nil {
		t.Skipf("CANNOT RUN HERE: bind mount: %v", err)
	}
	defer func() {
		if err := unix.Unmount(b.at("etc/hosts"), 0); err != nil {
			t.Error(err)
		}
	}()
	b.upload("", file{map[string]any{"path": b.at("etc/hosts"), "mode": 600}, []byte("new")}).want(200)
	same(t, read(t, b.at("backing")), "new")
	st, err := os.Stat(b.at("backing"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st, err)
	}
	sameList(t, leftovers(t, b.dir))
	b.remove("/directories", b.at("etc")).wantError(409, "FILE_CONFLICT")
	same(t, read(t, b.at("backing")), "new")
}

func TestMalformedUploads(t *testing.T) {
	b := newBench(t)
	send := func(kind, body string) answer {
		return b.do("POST", "/files/upload", strings.NewReader(body), http.Header{"Content-Type": {kind}})
	}
	const kind = "multipart/form-data; boundary=b"
	meta := "--b\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\r\n{\"path\":\"" + b.at("f") + "\"}\r\n"
	data := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n"
	send("application/json", "{}").wantError(400, "INVALID_FILE")
	send("multipart/form-data", "").wantError(400, "INVALID_FILE")
	send(kind, "--b--\r\n").wantError(400, "INVALID_FILE")
	send(kind, meta+"--b--\r\n").wantError(400, "INVALID_FILE")
	send(kind, data+"--b--\r\n").wantError(400, "INVALID_FILE")
	send(kind, meta+data+data+"--b--\r\n").wantError(400, "INVALID_FILE")
	send(kind, meta+data+meta+"--b--\r\n").wantError(400, "INVALID_FILE")
	send(kind, meta+data).wantError(400, "INVALID_FILE_CONTENT")
	send(kind, "no multipart at all").wantError(400, "INVALID_FILE_CONTENT")
	send(kind, strings.Replace(meta, `{"path"`, `{path`, 1)+data+"--b--").wantError(400, "INVALID_FILE_METADATA")
	send(kind, strings.Replace(meta, `"path"`, `"pat"`, 1)+data+"--b--").wantError(400, "INVALID_FILE_METADATA")
	send(kind, "--b\r\nbroken header\r\n\r\nx\r\n--b--").wantError(400, "INVALID_FILE_CONTENT")
	if entries, err := os.ReadDir(b.dir); err != nil || len(entries) > 0 {
		t.Fatal(entries, err)
	}
	send(kind, meta+data+"--b--").want(200)
	send(kind, meta+"--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\ny\r\n"+data+"--b--").want(200)
	same(t, read(t, b.at("f")), "x")
}

func TestUploadNeedsNoMemory(t *testing.T) {
	b := newBench(t)
	head := "--b\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{\"path\":\"" + b.at("big") + "\"}\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
	const size = 256 << 20
	body := io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader("\r\n--b--\r\n"))
	runtime.GC() // what earlier tests left behind is not the upload's
	stop := make(chan struct{})
	peak := make(chan uint64)
	go watchHeap(stop, peak)
	b.do("POST", "/files/upload", body, http.Header{"Content-Type": {"multipart/form-data; boundary=b"}}).want(200)
	close(stop)
	if most := <-peak; most > 24<<20 {
		t.Errorf("the heap grew to %d MiB", most>>20)
	}
	st, err := os.Stat(b.at("big"))
	if err != nil || st.Size() != size {
		t.Fatal(st, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestReplaceContent(t *testing.T) {
	b := newBench(t)
	write(t, b.at("a"), "one two one two one")
	write(t, b.at("b"), "nothing here")
	link(t, b.at("a"), b.at("link"))
	if err := os.Chmod(b.at("a"), 0o741); err != nil {
		t.Fatal(err)
	}
	var counts map[string]struct{ ReplacedCount int }
	b.post("/files/replace?verbose=true", map[string]any{
		b.at("a"): map[string]string{"old": "one", "new": "ONE"}, b.at("b"): map[string]string{"old": "x", "new": ""},
	}).want(200).decode(&counts)
	same(t, fmt.Sprint(counts[b.at("a")].ReplacedCount, counts[b.at("b")].ReplacedCount, len(counts)), "3 0 2")
	same(t, read(t, b.at("a")), "ONE two ONE two ONE")
	empty := b.post("/files/replace?verbose=false", map[string]any{b.at("link"): map[string]string{"old": "two", "new": ""}}).want(200)
	same(t, len(empty.body), 0)
	same(t, read(t, b.at("a")), "ONE  ONE  ONE")
	st, err := os.Lstat(b.at("a"))
	if err != nil || st.Mode().Perm() != 0o741 {
		t.Fatal(st, err)
	}
	b.post("/files/replace", map[string]any{b.at("a"): map[string]string{"old": "", "new": "x"}}).wantError(400, "INVALID_REQUEST_BODY")
	b.post("/files/replace", map[string]any{b.at("none"): map[string]string{"old": "a", "new": "x"}}).wantError(404, "FILE_NOT_FOUND")
	b.post("/files/replace", []string{"not a map"}).wantError(400, "INVALID_REQUEST_BODY")
	if bytes.Contains([]byte(strings.Join(leftovers(t, b.dir), "")), []byte(partPrefix)) {
		t.Fatal("leftovers")
	}
}
