// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shared is the supervisor of this test process: there can be only one.
var shared = sync.OnceValues(func() (*Supervisor, error) { return NewSupervisor(Options{}) })

func supervisor(t *testing.T) *Supervisor {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func launch(t *testing.T, s *Supervisor, id, script string) *Process {
	t.Helper()
	p, err := s.Start(Spec{ID: id, Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: os.Environ(), Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExits(t *testing.T) {
	s := supervisor(t)
	for script, want := range map[string]Exit{
		"true": {}, "exit 7": {Code: 7}, "kill -9 $$": {Code: 137, Signal: syscall.SIGKILL}, "kill $$": {Code: 143, Signal: syscall.SIGTERM},
	} {
		p := launch(t, s, "exits", script)
		<-p.Done()
		if p.Exit() != want {
			t.Errorf("%s: %+v", script, p.Exit())
		}
		p.Release()
	}
}

func TestStartErrors(t *testing.T) {
	s := supervisor(t)
	for path, want := range map[string]syscall.Errno{"/no/such": unix.ENOENT, "/etc/passwd": unix.EACCES, "/": unix.EACCES} {
		_, err := s.Start(Spec{ID: "x", Path: path, Argv: []string{path}, Dir: "/"})
		var start *StartError
		if !errors.As(err, &start) || start.Errno != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := s.Start(Spec{ID: "x", Path: "/bin/true", Argv: []string{"true", strings.Repeat("a", 1<<18)}, Dir: "/"})
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Error(err)
	}
}

// alive says whether a pid runs; a zombie does not.
func alive(pid int) bool {
	e, found := readEntry(strconv.Itoa(pid))
	return found && !e.zombie
}

func TestTreeWithoutCgroup(t *testing.T) {
	s := supervisor(t)
	out := t.TempDir() + "/pids"
	p := launch(t, s, "tree", "echo $$ > "+out+"; (setsid sh -c 'echo $$ >> "+out+"; sleep 99') & (setsid sh -c 'echo $$ >> "+out+"; sleep 99' &) ; wait")
	var pids []int
	for deadline := time.Now().Add(5 * time.Second); len(pids) < 3 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		content, err := os.ReadFile(out)
		if err != nil {
			continue
		}
		pids = pids[:0]
		for _, line := range strings.Fields(string(content)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) < 3 || p.Tree.Empty() {
		t.Fatalf("the tree has %v", pids)
	}
	p.Tree.Kill()
	<-p.Done()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("%d lives", pid)
		}
	}
	if !p.Tree.WaitEmpty(time.Second) {
		t.Error("the tree is not empty")
	}
	p.Release()
}

func TestNoZombieIsLeft(t *testing.T) {
	s := supervisor(t)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			p := launch(t, s, "z"+strconv.Itoa(i), "(sleep 0.02 &) ; true")
			<-p.Done()
			p.Release()
		})
	}
	group.Wait()
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		seen, children := scanProcesses(), 0
		for _, e := range seen {
			if e.parent == os.Getpid() {
				children++
			}
		}
		if children == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d children are left", children)
		}
	}
}

func TestParseOOMKills(t *testing.T) {
	for text, want := range map[string]uint64{
		"oom_kill_disable 0\nunder_oom 0\noom_kill 5\n": 5, "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n": 1, "": 0, "oom_kill x\n": 0,
	} {
		if got := parseOOMKills([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestSignalName(t *testing.T) {
	for sig, want := range map[syscall.Signal]string{unix.SIGKILL: "SIGKILL", unix.SIGTERM: "SIGTERM", 40: "signal 40"} {
		if got := SignalName(sig); got != want {
			t.Error(got)
		}
	}
}

func TestSignalsNeverReachStrangers(t *testing.T) {
	s := supervisor(t)
	p := launch(t, s, "gone", "true")
	<-p.Done()
	// The pid is free again: these must not be sent at all.
	p.SignalGroup(syscall.SIGKILL)
	p.SignalOther(os.Getpid(), syscall.SIGKILL)
	p.Release()
}
