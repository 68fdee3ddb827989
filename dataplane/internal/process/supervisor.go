// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package process owns every child of the daemon: it forks them, places them in a tree that can be
// killed as a whole, reaps them and all orphans, and says how each one ended.
package process

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/thread"
)

// Options are the descriptors that the starter may hand over. Each may be nil.
type Options struct {
	// Cgroup is a delegated cgroup-v2 directory in which every tree gets a child of its own.
	Cgroup *os.File
	// Pids is the tasks file of a cgroup-v1 pids group: children are born in it, the daemon is not.
	Pids *os.File
}

// Supervisor forks and reaps. There is one in a daemon.
type Supervisor struct {
	groups *groups
	ledger *ledger
	forks  chan func()
	pids   *os.File

	// mu is held over fork and registration, and over reaping: a pid in children is never stale.
	mu       sync.Mutex
	children map[int]*Process
}

// NewSupervisor makes the daemon the reaper of its descendants and starts reaping.
func NewSupervisor(options Options) (*Supervisor, error) {
	s := &Supervisor{groups: newGroups(options.Cgroup), ledger: newLedger(newOOMCounter().read), children: map[int]*Process{}}
	s.pids = options.Pids
	if err := becomeReaper(); err != nil {
		return nil, err
	}
	if options.Pids != nil {
		if err := s.forkInside(options.Pids); err != nil {
			return nil, err
		}
	}
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	go s.reap(exits)
	return s, nil
}

func becomeReaper() error {
	if os.Getpid() == 1 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	return nil
}

// forkInside moves one OS thread into the limited group and makes it the only one that forks:
// children inherit the group of the forking thread, and the daemon keeps its reserve outside.
func (s *Supervisor) forkInside(tasks *os.File) error {
	s.forks = make(chan func())
	joined := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := tasks.WriteString("0")
		joined <- err
		for fork := range s.forks {
			fork()
		}
	}()
	if err := <-joined; err != nil {
		return fmt.Errorf("join the process limit's group: %w", err)
	}
	return nil
}

// Start forks the process of a spec. The caller still owns spec.Files.
func (s *Supervisor) Start(spec Spec) (*Process, error) {
	spec.ownPipes()
	tree := s.groups.take(spec.ID)
	process := &Process{supervisor: s, Tree: tree, done: make(chan struct{}), account: s.ledger.open(spec.Run)}
	err := s.fork(process, spec)
	if err != nil {
		s.ledger.end(process.account)
		s.groups.give(tree)
		return nil, err
	}
	preferForOOM(process.PID)
	return process, nil
}

func (s *Supervisor) fork(process *Process, spec Spec) (err error) {
	work := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		process.PID, err = s.forkExec(spec, process.Tree)
		if err == nil {
			process.Tree.leader = process.PID
			s.children[process.PID] = process
		}
	}
	if spec.Inside != nil {
		if refused := s.forkThrough(spec.Inside, work); refused != nil {
			return refused
		}
		return err
	}
	if s.forks == nil {
		work()
		return err
	}
	finished := make(chan struct{})
	s.forks <- func() { work(); close(finished) }
	<-finished
	return err
}

// forkThrough forks from a thread of its own, after that has entered the process limit's group, which
// counts threads one by one, and the world of the process.
func (s *Supervisor) forkThrough(inside func() error, fork func()) (err error) {
	thread.Throwaway(func() {
		if s.pids != nil {
			_, err = s.pids.WriteString("0")
		}
		if err == nil {
			err = inside()
		}
		if err == nil {
			fork()
		}
	})
	return err
}

// forkExec tries the tree's cgroup first. A host that refuses it once is not asked again.
func (s *Supervisor) forkExec(spec Spec, tree *Tree) (int, error) {
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, spec.attributes(tree))
	if err != nil && tree.group != nil && mayBeCgroupRefusal(err) {
		pid, err = s.forkOutside(spec, tree, err)
	}
	if err != nil {
		return 0, startError(spec, err)
	}
	return pid, nil
}

// forkOutside tells a refused cgroup from a program that cannot be started anyway: the same errno
// without the cgroup means that the program is to blame.
func (s *Supervisor) forkOutside(spec Spec, tree *Tree, refusal error) (int, error) {
	group := tree.group
	tree.group = nil
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, spec.attributes(tree))
	if err == refusal {
		tree.group = group
		return 0, err
	}
	s.groups.disable(group, refusal)
	return pid, err
}

// reap collects every dead child, known or orphan. The signal may stand for many of them.
func (s *Supervisor) reap(exits <-chan os.Signal) {
	for range exits {
		for s.reapOne() {
		}
	}
}

func (s *Supervisor) reapOne() bool {
	pid := peekDead()
	if pid == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var status unix.WaitStatus
	reaped, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
	if err != nil || reaped != pid {
		// A failed exec was collected by the fork itself between the look and the wait.
		return true
	}
	if child := s.children[pid]; child != nil {
		delete(s.children, pid)
		child.finish(status)
		return true
	}
	s.groups.sweep()
	return true
}

// signalChild sends to a pid or group only while its leader is not reaped, so never to a stranger.
func (s *Supervisor) signalChild(p *Process, target int, sig unix.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.children[p.PID] == p {
		if sig == unix.SIGKILL {
			p.killed.Store(true)
		}
		ignoreGone(unix.Kill(target, sig))
	}
}

// KillAll ends every descendant of the daemon, for the moment before it exits.
func (s *Supervisor) KillAll() {
	if os.Getpid() == 1 {
		ignoreGone(unix.Kill(-1, unix.SIGKILL))
		return
	}
	killDescendants(os.Getpid())
}
