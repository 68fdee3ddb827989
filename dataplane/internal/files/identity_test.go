// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/thread"
)

const somebody = "/v1/filesystem/4711/4712"

func openBench(t *testing.T) *bench {
	t.Helper()
	needRoot(t)
	b := newBench(t)
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestIdentityOwnsWhatItMakes(t *testing.T) {
	b := openBench(t)
	if err := os.Mkdir(b.at("theirs"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(b.at("theirs"), 4711, 4712); err != nil {
		t.Fatal(err)
	}
	b.upload(somebody, put(b.at("theirs/sub/f"), "x")).want(200)
	b.post(somebody+"/directories", map[string]any{b.at("theirs/d"): map[string]any{"mode": 700}}).want(200)
	for _, info := range b.get(somebody+"/directories/list", "path", b.at("theirs"), "depth", "3").infos() {
		same(t, words(info.Owner, info.Group), "4711 4712")
	}
	same(t, string(b.get(somebody+"/files/download", "path", b.at("theirs/sub/f")).want(200).body), "x")
	b.post(somebody+"/files/replace", map[string]any{b.at("theirs/sub/f"): map[string]string{"old": "x", "new": "y"}}).want(200)
	b.post(somebody+"/files/mv", []map[string]string{{"src": b.at("theirs/sub/f"), "dest": b.at("theirs/g")}}).want(200)
	same(t, read(t, b.at("theirs/g")), "y")
	b.remove(somebody+"/directories", b.at("theirs/sub"), b.at("theirs/d")).want(200)
	b.remove(somebody+"/files", b.at("theirs/g")).want(200)
}

func TestIdentityMayNotWhatItsUserMayNot(t *testing.T) {
	b := openBench(t)
	write(t, b.at("private"), "secret")
	write(t, b.at("closed/f"), "x")
	for _, p := range []string{b.at("private"), b.at("closed")} {
		if err := os.Chmod(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.get(somebody+"/files/download", "path", b.at("private")).wantError(403, CodeDenied)
	b.get(somebody+"/files/info", "path", b.at("closed/f")).wantError(403, CodeDenied)
	b.get(somebody+"/directories/list", "path", b.at("closed")).wantError(403, CodeDenied)
	b.upload(somebody, put(b.at("new"), "x")).wantError(403, CodeDenied)
	b.upload(somebody, put(b.at("private"), "x")).wantError(403, CodeDenied)
	b.post(somebody+"/files/permissions", map[string]any{b.at("private"): map[string]any{"mode": 777}}).wantError(403, CodeDenied)
	b.post(somebody+"/directories", map[string]any{b.at("dir"): map[string]any{}}).wantError(403, CodeDenied)
	b.post(somebody+"/files/mv", []map[string]string{{"src": b.at("private"), "dest": b.at("mine")}}).wantError(403, CodeDenied)
	b.remove(somebody+"/files", b.at("private")).wantError(403, CodeDenied)
	b.remove(somebody+"/directories", b.at("closed")).wantError(403, CodeDenied)
	b.get(somebody+"/files/download", "path", "/proc/1/environ").wantError(403, CodeDenied)
	sameList(t, b.get(somebody+"/files/search", "path", b.dir).relative(b.dir), "private")
	same(t, read(t, b.at("private"))+read(t, b.at("closed/f")), "secretx")
	b.get("/files/download", "path", b.at("private")).want(200)
	b.get("/v1/filesystem/0/0/files/download", "path", b.at("private")).want(200)
}

func TestIdentityGroupsCount(t *testing.T) {
	b := openBench(t)
	write(t, b.at("shared"), "x")
	if err := errors.Join(os.Chown(b.at("shared"), 0, 4712), os.Chmod(b.at("shared"), 0o640)); err != nil {
		t.Fatal(err)
	}
	b.get(somebody+"/files/download", "path", b.at("shared")).want(200)
	b.get("/v1/filesystem/4711/1/files/download", "path", b.at("shared")).wantError(403, CodeDenied)
	view := View{Enter: Identity{UID: 4711, GID: 1, Groups: []uint32{4712}}.Enter}
	if err := view.run(func() { _ = read(t, b.at("shared")) }); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityWritesInPlaceWhereTheDirectoryIsClosed(t *testing.T) {
	b := openBench(t)
	write(t, b.at("theirs"), "a longer old text")
	if err := os.Chown(b.at("theirs"), 4711, 4712); err != nil {
		t.Fatal(err)
	}
	b.upload(somebody, file{map[string]any{"path": b.at("theirs")}, []byte("new")}).want(200)
	same(t, read(t, b.at("theirs")), "new")
	sameList(t, leftovers(t, b.dir))
}

func TestIdentityNumbersAreChecked(t *testing.T) {
	b := openBench(t)
	for _, bad := range []string{"x/1", "1/x", "-1/1", "4294967295/1", "1/4294967295", "1.0/1", "99999999999/1"} {
		b.get("/v1/filesystem/"+bad+"/files/info", "path", "/").wantError(400, "INVALID_REQUEST_BODY")
	}
	b.get("/v1/filesystem/4294967294/4294967294/files/info", "path", "/").want(200)
}

// TestIdentitiesDoNotLeak mixes requests of several users; each must see exactly its own files.
func TestIdentitiesDoNotLeak(t *testing.T) {
	b := openBench(t)
	for uid := range 5 {
		p := b.at(fmt.Sprint(uid))
		write(t, p, fmt.Sprint(uid))
		if err := errors.Join(os.Chown(p, 5000+uid, 5000+uid), os.Chmod(p, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for i := range 100 {
				uid := (caller + i) % 5
				prefix := fmt.Sprintf("/v1/filesystem/%d/%d", 5000+uid, 5000+uid)
				other := (uid + 1 + i%3) % 5
				if got := b.get(prefix+"/files/download", "path", b.at(fmt.Sprint(uid))); got.status != 200 || string(got.body) != fmt.Sprint(uid) {
					t.Errorf("own file: %d", got.status)
				}
				if got := b.get(prefix+"/files/download", "path", b.at(fmt.Sprint(other))); got.status != 403 {
					t.Errorf("file of another: %d", got.status)
				}
				if got := b.get("/files/download", "path", b.at(fmt.Sprint(other))); got.status != 200 {
					t.Errorf("the daemon itself: %d", got.status)
				}
			}
		})
	}
	callers.Wait()
}

func TestIdentityFailsClosed(t *testing.T) {
	needRoot(t)
	var problem *problem
	err := View{Enter: func() error {
		// Without the privilege the kernel ignores the change of ids, and only asking again shows it.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		return Identity{UID: 4711, GID: 4711}.Enter()
	}}.run(func() { t.Error("the operation ran all the same") })
	if !errors.As(err, &problem) || problem.status != http.StatusNotImplemented {
		t.Fatal(err)
	}
}

func TestPanicsOfAnotherThreadReachTheCaller(t *testing.T) {
	defer func() { same(t, recover() == http.ErrAbortHandler, true) }()
	_ = View{Enter: func() error { return nil }}.run(func() { panic(http.ErrAbortHandler) })
}

func TestThrowawayThreadsAreGoneAfterwards(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 200 {
		thread.Throwaway(func() {})
	}
	waitFor(t, func() bool { return count() <= before+4 })
}

func TestOwnUserOfTheSandbox(t *testing.T) {
	b := openBench(t)
	b.service.config.UID, b.service.config.GID = 4711, 4712
	write(t, b.at("private"), "secret")
	if err := errors.Join(os.Chmod(b.at("private"), 0o600), os.Chmod(b.dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	b.get("/files/download", "path", b.at("private")).wantError(403, CodeDenied)
	b.upload("", put(b.at("mine"), "x")).want(200)
	var infos map[string]FileInfo
	b.get("/files/info", "path", b.at("mine")).want(200).decode(&infos)
	same(t, words(infos[b.at("mine")].Owner, infos[b.at("mine")].Group), "4711 4712")
}
