// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDeletingFiles(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "x")
	write(t, b.at("dir/g"), "x")
	b.remove("/files", b.at("f"), b.at("none"), b.at("none/below"), b.at("dir/g/below")).want(200)
	b.remove("/files", b.at("dir")).wantError(500, "RUNTIME_ERROR")
	sameList(t, b.get("/files/search", "path", b.dir).relative(b.dir), "dir/g")
	b.remove("/directories", b.at("dir"), b.at("none")).want(200)
	sameList(t, b.get("/directories/list", "path", b.dir).relative(b.dir))
	b.remove("/directories", "/").wantError(400, "INVALID_REQUEST_BODY")
	b.remove("/directories", "/etc/..").wantError(400, "INVALID_REQUEST_BODY")
}

func TestB027DeletingLinksLeavesTheirTargets(t *testing.T) {
	b := newBench(t)
	write(t, b.at("target/f"), "x")
	write(t, b.at("tree/sub/g"), "x")
	for _, name := range []string{"one", "two", "tree/link", "tree/sub/link"} {
		link(t, b.at("target"), b.at(name))
	}
	b.remove("/files", b.at("one")).want(200)
	b.remove("/directories", b.at("two")+"/", b.at("tree")).want(200)
	sameList(t, b.get("/directories/list", "path", b.dir, "depth", "5").relative(b.dir), "target", "target/f")
}

// TestB027SwappedDirectories replaces directories by links to a precious place while they are being deleted.
func TestB027SwappedDirectories(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		write(t, b.at("precious", fmt.Sprint(i)), "x")
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			victim := b.at("tree", fmt.Sprint(i%20))
			if os.Rename(victim, b.at("aside")) == nil {
				_ = os.Symlink(b.at("precious"), victim)
				_ = os.RemoveAll(b.at("aside"))
			}
		}
	})
	for range 30 {
		for i := range 20 {
			dir := b.at("tree", fmt.Sprint(i))
			if os.MkdirAll(dir, 0o755) == nil {
				for j := range 5 {
					_ = os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), nil, 0o644)
				}
			}
		}
		b.remove("/directories", b.at("tree"))
	}
	close(stop)
	swapping.Wait()
	entries, err := os.ReadDir(b.at("precious"))
	if err != nil || len(entries) != 50 {
		t.Fatalf("%d files of 50 are left: %v", len(entries), err)
	}
}

func TestDeletingAVeryDeepTree(t *testing.T) {
	b := newBench(t)
	const depth = 1000
	fd, err := openAt(unix.AT_FDCWD, b.dir, openDirFlags, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(fd, "a-directory-name", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := openAt(fd, "a-directory-name", openDirFlags, 0)
		if err != nil {
			t.Fatal(err)
		}
		closeFD(fd)
		fd = next
	}
	closeFD(fd)
	count := 0
	root, err := openAt(unix.AT_FDCWD, b.dir, openDirFlags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(root)
	before := openDescriptors(t)
	err = walk(context.Background(), root, visitor{enter: func(v visit) (bool, error) {
		count++
		if count%500 != 0 {
			return true, nil
		}
		if open := openDescriptors(t); open > before+maxOpenLevels+8 {
			t.Errorf("%d descriptors are open at depth %d", open-before, count)
		}
		return true, nil
	}})
	if err != nil || count != depth {
		t.Fatal(count, err)
	}
	b.remove("/directories", b.at("a-directory-name")).want(200)
	sameList(t, b.get("/directories/list", "path", b.dir).relative(b.dir))
	same(t, openDescriptors(t) <= before+4, true)
}

func openDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestWalkNoticesThatItsParentMoved(t *testing.T) {
	b := newBench(t)
	if err := os.MkdirAll(b.at("root", strings.Repeat("d/", maxOpenLevels+20)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.at("elsewhere"), 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := openAt(unix.AT_FDCWD, b.at("root"), openDirFlags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	err = walk(context.Background(), fd, visitor{enter: func(v visit) (bool, error) {
		if v.depth == maxOpenLevels+20 {
			return true, os.Rename(b.at("root/d/d/d"), b.at("elsewhere/d"))
		}
		return true, nil
	}})
	if err != errTreeMoved {
		t.Fatalf("%v", err)
	}
}

func TestADeletedTreeOfManyFilesIsFast(t *testing.T) {
	b := newBench(t)
	for i := range 2000 {
		write(t, b.at("tree", fmt.Sprint(i%20), fmt.Sprint(i)), "")
	}
	start := time.Now()
	b.remove("/directories", b.at("tree")).want(200)
	if took := time.Since(start); took > 30*time.Second {
		t.Fatalf("took %v", took)
	}
}
