// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestB025NamesThatAreNotUnicode(t *testing.T) {
	b := newBench(t)
	write(t, b.at("bad\xffname"), "odd")
	write(t, b.at("good"), "fine")
	write(t, b.at("new\nline"), "two lines")
	infos := b.get("/directories/list", "path", b.dir).infos()
	same(t, len(infos), 3)
	odd := infos[0].Path
	same(t, odd, b.at("bad\U0010FEFFname"))
	same(t, infos[2].Path, b.at("new\nline"))
	sameList(t, b.get("/files/search", "path", b.dir, "pattern", "bad*").relative(b.dir), "bad\U0010FEFFname")
	same(t, string(b.get("/files/download", "path", odd).want(200).body), "odd")
	same(t, string(b.do("GET", "/files/download?path="+b.dir+"/bad%ffname", nil, nil).want(200).body), "odd")
	var found map[string]FileInfo
	b.get("/files/info", "path", odd).want(200).decode(&found)
	same(t, found[odd].Path, odd)
	b.upload("", put(odd, "new")).want(200)
	same(t, read(t, b.at("bad\xffname")), "new")
	b.post("/files/mv", []map[string]string{{"src": odd, "dest": odd + "2"}}).want(200)
	same(t, read(t, b.at("bad\xffname2")), "new")
	b.remove("/files", odd+"2", b.at("new\nline")).want(200)
	sameList(t, b.get("/directories/list", "path", b.dir).relative(b.dir), "good")
}

func TestPathsAreExpanded(t *testing.T) {
	b := newBench(t)
	write(t, b.at("sub/f"), "x")
	write(t, b.at("$SUB/f"), "literal")
	write(t, b.at("$UNSET"), "unset")
	for text, want := range map[string]string{
		"~/sub/f": "x", "sub/f": "x", "${SUB}/f": "x", "sub/../sub//f": "x", b.at("$SUB/f"): "literal", "$UNSET": "unset",
	} {
		if text == "${SUB}/f" {
			want = "x"
		}
		same(t, string(b.get("/files/download", "path", text).want(200).body), want)
	}
	b.get("/files/info", "path", "").wantError(400, "INVALID_REQUEST_BODY")
	b.get("/files/info", "path", "a\x00b").wantError(400, "INVALID_REQUEST_BODY")
	b.get("/files/info", "path", b.at("none")).wantError(404, "FILE_NOT_FOUND")
	b.get("/files/info").wantError(400, "MISSING_QUERY")
	b.remove("/directories", "$NOT_SET/").want(200)
	same(t, read(t, b.at("sub/f")), "x")
}

func TestInfoDescribesLinksThemselves(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "12345")
	link(t, "f", b.at("link"))
	var infos map[string]FileInfo
	b.get("/files/info", "path", b.at("f"), "path", b.at("link"), "path", b.dir).want(200).decode(&infos)
	same(t, words(infos[b.at("f")].Type, infos[b.at("f")].Size, infos[b.at("f")].Mode), "file 5 644")
	same(t, words(infos[b.at("link")].Type, infos[b.at("link")].Target), "symlink f")
	same(t, words(infos[b.dir].Type, infos[b.dir].Size), "directory 0")
	modified, err := time.Parse(time.RFC3339Nano, infos[b.at("f")].ModifiedAt)
	if err != nil || time.Since(modified).Abs() > time.Minute {
		t.Fatal(modified, err)
	}
	created, err := time.Parse(time.RFC3339Nano, infos[b.at("f")].CreatedAt)
	if err != nil || modified.Sub(created).Abs() > 2*time.Second {
		t.Fatal(created, err)
	}
}

func TestDownloads(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "0123456789")
	write(t, b.at("empty"), "")
	write(t, b.at(`odd "ü".txt`), "x")
	whole := b.get("/files/download", "path", b.at("f")).want(200)
	same(t, whole.header.Get("Content-Type"), "application/octet-stream")
	same(t, whole.header.Get("Content-Disposition"), `attachment; filename="f"`)
	same(t, whole.header.Get("Content-Length")+whole.header.Get("Accept-Ranges"), "10bytes")
	named := b.get("/files/download", "path", b.at(`odd "ü".txt`)).want(200)
	same(t, named.header.Get("Content-Disposition"), `attachment; filename="odd ___.txt"; filename*=UTF-8''odd%20%22%C3%BC%22.txt`)
	ranged := func(wanted, p string) answer {
		return b.do("GET", query("/files/download", "path", p), nil, map[string][]string{"Range": {wanted}})
	}
	part := ranged("bytes=2-4", b.at("f")).want(206)
	same(t, string(part.body)+part.header.Get("Content-Range")+part.header.Get("Content-Length"), "234bytes 2-4/103")
	same(t, string(ranged("bytes=7-", b.at("f")).want(206).body), "789")
	same(t, string(ranged("bytes=-3", b.at("f")).want(206).body), "789")
	same(t, string(ranged("bytes=8-100", b.at("f")).want(206).body), "89")
	same(t, string(ranged("bytes=0-1,5-6", b.at("f")).want(206).body), "01")
	same(t, ranged("bytes=10-", b.at("f")).wantError(416, "INVALID_REQUEST_BODY").header.Get("Content-Range"), "bytes */10")
	ranged("bytes=0-", b.at("empty")).want(416)
	same(t, b.get("/files/download", "path", b.at("empty")).want(200).header.Get("Content-Length"), "0")
	b.get("/files/download", "path", b.dir).wantError(400, "INVALID_FILE")
	b.get("/files/download", "path", b.at("none")).wantError(404, "FILE_NOT_FOUND")
	b.get("/files/download", "path", b.at("f", "below")).wantError(404, "FILE_NOT_FOUND")
	b.get("/files/download").wantError(400, "MISSING_QUERY")
	head := b.do("HEAD", query("/files/download", "path", b.at("f")), nil, nil).want(200)
	same(t, head.header.Get("Content-Length")+string(head.body), "10")
	if text := string(b.get("/files/download", "path", "/proc/self/status").want(200).body); !strings.Contains(text, "Name:") {
		t.Fatalf("%q", text)
	}
}

func TestDownloadOfLines(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "line1\nline2\r\nline3\nline4\nline5\n")
	write(t, b.at("open"), "a\n\nb\r")
	long := strings.Repeat("x", 200<<10)
	write(t, b.at("long"), long+"\r\n"+long+"\nend")
	lines := func(p string, pairs ...string) string {
		answer := b.get("/files/download", append([]string{"path", b.at(p)}, pairs...)...).want(200)
		same(t, answer.header.Get("Content-Type"), "text/plain; charset=utf-8")
		return string(answer.body)
	}
	same(t, lines("f", "offset", "2", "limit", "2"), "line2\nline3")
	same(t, lines("f", "offset", "4"), "line4\nline5")
	same(t, lines("f", "limit", "2"), "line1\nline2")
	same(t, lines("f", "offset", "9"), "")
	same(t, lines("open", "limit", "9"), "a\n\nb")
	same(t, lines("long", "limit", "1"), long)
	same(t, lines("long", "offset", "2"), long+"\nend")
	for _, pair := range [][]string{{"offset", "0"}, {"limit", "0"}, {"limit", "x"}, {"offset", "-1"}} {
		b.get("/files/download", "path", b.at("f"), pair[0], pair[1]).wantError(400, "INVALID_REQUEST_BODY")
	}
	b.do("GET", query("/files/download", "path", b.at("f"), "limit", "1"), nil, map[string][]string{"Range": {"bytes=0-1"}}).want(400)
}

func TestSearch(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"a.py", "src/b.py", "src/deep/c.py", "src/deep/d.txt", ".hidden"} {
		write(t, b.at(name), "x")
	}
	link(t, "/", b.at("src/root"))
	search := func(pattern string) []string {
		return b.get("/files/search", "path", b.dir, "pattern", pattern).relative(b.dir)
	}
	sameList(t, search("*"), ".hidden", "a.py", "src/b.py", "src/deep/c.py", "src/deep/d.txt", "src/root")
	sameList(t, b.get("/files/search", "path", b.dir).relative(b.dir), search("**")...)
	sameList(t, search("*.py"), "a.py", "src/b.py", "src/deep/c.py")
	sameList(t, search("src/**/*.py"), "src/b.py", "src/deep/c.py")
	sameList(t, search("src/*.{py,txt}"), "src/b.py")
	sameList(t, search("none"))
	same(t, string(b.get("/files/search", "path", b.dir, "pattern", "none").body), "[]")
	sameList(t, b.get("/files/search", "path", b.at("src/root"), "pattern", "*").relative(b.dir), "src/root")
	sameList(t, b.get("/files/search", "path", b.at("a.py")).relative(b.dir), "a.py")
	b.get("/files/search", "path", b.at("none"), "pattern", "*").wantError(404, "FILE_NOT_FOUND")
	b.get("/files/search", "pattern", "*").wantError(400, "MISSING_QUERY")
	b.get("/files/search", "path", b.dir, "pattern", "[").wantError(400, "INVALID_REQUEST_BODY")
}

func TestSearchesOfAWiderTreeLeaveVirtualFileSystemsOut(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	write(t, b.at("version"), "x")
	if err := os.Mkdir(b.at("proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", b.at("proc"), "proc", 0, ""); err != nil {
		t.Skipf("CANNOT RUN HERE: mounting proc: %v", err)
	}
	defer func() {
		if err := unix.Unmount(b.at("proc"), 0); err != nil {
			t.Error(err)
		}
	}()
	sameList(t, b.get("/files/search", "path", b.dir, "pattern", "version").relative(b.dir), "version")
	inside := b.get("/files/search", "path", b.at("proc"), "pattern", "version").relative(b.dir)
	same(t, slices.Contains(inside, "proc/version"), true)
}

func TestListings(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"a-b", "a/x/deep", "a/y", "c"} {
		write(t, b.at(name), "x")
	}
	link(t, b.at("a"), b.at("link"))
	list := func(depth string) []string {
		return b.get("/directories/list", "path", b.dir, "depth", depth).relative(b.dir)
	}
	sameList(t, b.get("/directories/list", "path", b.dir).relative(b.dir), "a", "a-b", "c", "link")
	sameList(t, list("2"), "a", "a/x", "a/y", "a-b", "c", "link")
	sameList(t, list("9"), "a", "a/x", "a/x/deep", "a/y", "a-b", "c", "link")
	same(t, string(b.get("/directories/list", "path", b.dir, "depth", "0").want(200).body), "[]")
	b.get("/directories/list", "path", b.dir, "depth", "-1").wantError(400, "INVALID_REQUEST_BODY")
	b.get("/directories/list", "path", b.at("link")).wantError(400, "INVALID_FILE")
	b.get("/directories/list", "path", b.at("c")).wantError(400, "INVALID_FILE")
	b.get("/directories/list", "path", b.at("none")).wantError(404, "FILE_NOT_FOUND")
	b.get("/directories/list").wantError(400, "MISSING_QUERY")
}

func TestMakingDirectories(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	b.post("/directories", map[string]any{
		b.at("new/leaf"): map[string]any{"mode": 700, "owner": "nobody", "group": "4711"}, b.at("sticky"): map[string]any{"mode": 1777, "owner": nil},
	}).want(200)
	var infos map[string]FileInfo
	b.get("/files/info", "path", b.at("new/leaf"), "path", b.at("new"), "path", b.at("sticky")).want(200).decode(&infos)
	leaf := infos[b.at("new/leaf")]
	same(t, words(leaf.Mode, leaf.Owner, leaf.Group, infos[b.at("new")].Mode, infos[b.at("sticky")].Mode), "700 nobody 4711 755 1777")
	b.post("/directories", map[string]any{b.at("new/leaf"): map[string]any{"mode": 755}}).want(200)
	b.get("/files/info", "path", b.at("new/leaf")).want(200).decode(&infos)
	same(t, int(infos[b.at("new/leaf")].Mode), 700)
	write(t, b.at("file"), "x")
	b.post("/directories", map[string]any{b.at("file"): map[string]any{}}).wantError(409, "FILE_CONFLICT")
	b.post("/directories", map[string]any{b.at("file/below"): map[string]any{}}).wantError(409, "FILE_CONFLICT")
	b.post("/directories", map[string]any{"/": map[string]any{"mode": 755}}).want(200)
}

func TestMoves(t *testing.T) {
	b := newBench(t)
	write(t, b.at("dir/f"), "x")
	write(t, b.at("g"), "g")
	mv := func(src, dest string) answer {
		return b.post("/files/mv", []map[string]string{{"src": b.at(src), "dest": b.at(dest)}})
	}
	mv("dir", "new/parent/dir2").want(200)
	same(t, read(t, b.at("new/parent/dir2/f")), "x")
	mv("g", "new/parent/dir2/f").wantError(500, "RUNTIME_ERROR")
	same(t, read(t, b.at("new/parent/dir2/f"))+read(t, b.at("g")), "xg")
	mv("none", "x").wantError(404, "FILE_NOT_FOUND")
	mv("new", "new/inside").wantError(500, "RUNTIME_ERROR")
	link(t, "/nowhere", b.at("link"))
	mv("link", "moved").want(200)
	target, err := os.Readlink(b.at("moved"))
	if err != nil || target != "/nowhere" {
		t.Fatal(target, err)
	}
}

func TestMovesBetweenFileSystems(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	disk := smallDisk(t, "8m")
	write(t, b.at("dir/sub/f"), "content")
	link(t, "sub/f", b.at("dir/link"))
	if err := unix.Mkfifo(b.at("dir/pipe"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(b.at("dir/sub/f"), 1234, 2345); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(b.at("dir/sub"), 0o500); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(b.at("dir/sub/f"), old, old); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(disk, "moved")
	b.post("/files/mv", []map[string]string{{"src": b.at("dir"), "dest": dest}}).want(200)
	if _, err := os.Lstat(b.at("dir")); !os.IsNotExist(err) {
		t.Fatal("the source is still there")
	}
	var infos map[string]FileInfo
	b.get("/files/info", "path", dest+"/sub/f", "path", dest+"/sub", "path", dest+"/link").want(200).decode(&infos)
	moved := infos[dest+"/sub/f"]
	same(t, words(moved.Owner, moved.Group, moved.ModifiedAt), "1234 2345 2001-09-09T01:46:40.000000Z")
	same(t, words(infos[dest+"/sub"].Mode, infos[dest+"/link"].Target), "500 sub/f")
	write(t, b.at("big"), strings.Repeat("x", 16<<20))
	b.post("/files/mv", []map[string]string{{"src": b.at("big"), "dest": disk + "/big"}}).wantError(507, "NO_SPACE")
	same(t, len(read(t, b.at("big"))), 16<<20)
	sameList(t, leftovers(t, disk))
}

func TestPermissions(t *testing.T) {
	needRoot(t)
	b := newBench(t)
	write(t, b.at("f"), "x")
	var infos map[string]FileInfo
	set := func(item map[string]any) string {
		b.post("/files/permissions", map[string]any{b.at("f"): item}).want(200)
		b.get("/files/info", "path", b.at("f")).want(200).decode(&infos)
		info := infos[b.at("f")]
		return words(info.Mode, info.Owner, info.Group)
	}
	same(t, set(map[string]any{"mode": 755, "owner": "nobody", "group": "nogroup"}), "755 nobody nogroup")
	same(t, set(map[string]any{"mode": 600, "owner": nil, "group": ""}), "600 nobody nogroup")
	same(t, set(map[string]any{"mode": 0, "owner": "0"}), "600 root nogroup")
	same(t, set(map[string]any{"mode": 6711, "owner": "4711", "group": "4711"}), "6711 4711 4711")
	b.post("/files/permissions", map[string]any{b.at("none"): map[string]any{"mode": 600}}).wantError(404, "FILE_NOT_FOUND")
	b.post("/files/permissions", map[string]any{b.at("f"): map[string]any{"mode": 688}}).wantError(400, "INVALID_REQUEST_BODY")
	b.post("/files/permissions", map[string]any{b.at("f"): map[string]any{"group": "no-such-group"}}).wantError(400, "INVALID_REQUEST_BODY")
}
