// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDenialsAreCountedInsteadOfRepeated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path, 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		l.Write(Record{Sandbox: "a", Decision: "deny", Name: "x.test"})
		l.Write(Record{Sandbox: "a", Decision: "allow", Name: "y.test"})
	}
	l.Write(Record{Sandbox: "b", Decision: "deny", Name: "x.test"})
	if got := len(l.Recent("a")); got != 51 {
		t.Errorf("%d lines", got)
	}
	l.mu.Lock()
	l.sweep(time.Now().Add(2 * quiet))
	l.mu.Unlock()
	recent := l.Recent("a")
	if last := recent[len(recent)-1]; last.Repeated != 49 || last.Name != "x.test" {
		t.Errorf("%+v", last)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	content, _ := os.ReadFile(path)
	if got := strings.Count(string(content), "\n"); got != 53 {
		t.Errorf("%d lines in the file", got)
	}
}

func TestTheFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path, 1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		l.Write(Record{Sandbox: "a", Decision: "allow", Port: uint16(i)})
	}
	for _, name := range []string{path, path + ".1", path + ".2"} {
		if info, err := os.Stat(name); err != nil || info.Size() > 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("too many are kept")
	}
	if got := len(l.Recent("")); got != 100 {
		t.Errorf("%d lines are remembered", got)
	}
}

func TestALogThatCannotBeSetAsideGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(path+".1", 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path, 300, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		l.Write(Record{Sandbox: "a", Decision: "allow", Port: uint16(i + 1)})
	}
	content, err := os.ReadFile(path)
	if err != nil || strings.Count(string(content), "\n") != 10 {
		t.Errorf("%d lines, %v", strings.Count(string(content), "\n"), err)
	}
	if l.Failed() == 0 {
		t.Error("it is not told")
	}
}

func TestALogThatSomebodyMovedIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path, 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	l.Write(Record{Sandbox: "a", Decision: "allow", Port: 1})
	if err := os.Rename(path, path+".mine"); err != nil {
		t.Fatal(err)
	}
	l.Sweep()
	l.Write(Record{Sandbox: "a", Decision: "allow", Port: 2})
	if content, err := os.ReadFile(path); err != nil || strings.Count(string(content), "\n") != 1 {
		t.Errorf("%q, %v", content, err)
	}
}

func TestFollowersGetWhatComes(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "log"), 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	l.Write(Record{Sandbox: "a", Decision: "allow"})
	recent, next, stop := l.Follow("a")
	l.Write(Record{Sandbox: "b", Decision: "allow"})
	l.Write(Record{Sandbox: "a", Decision: "allow", Port: 7})
	if got := <-next; len(recent) != 1 || got.Port != 7 {
		t.Error(recent, got)
	}
	stop()
	for range 2 * backlog { // nobody reads
		l.Write(Record{Sandbox: "a", Decision: "allow"})
	}
}
