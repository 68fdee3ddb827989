// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// marker is the variable that names the tree of a process on hosts without a delegated cgroup.
const marker = "CASULO_COMMAND_ID"

// killBound limits how long a kill is repeated; a process that outlives it hangs in the kernel.
const killBound = 3 * time.Second

// Tree is everything that descends from one started process. With a cgroup membership is exact;
// without, it is found by process group, parentage and the marker in the environment.
type Tree struct {
	id     string
	group  *group
	leader int
	// killed is true once we ended the tree.
	killed atomic.Bool
}

// Empty reports whether no process of the tree runs any more. Zombies do not count.
func (t *Tree) Empty() bool {
	if t.group != nil {
		return !t.group.populated()
	}
	// One look may miss a process that is just being forked.
	return len(t.members()) == 0 && len(t.members()) == 0
}

// Kill ends every process of the tree and returns when none is left.
func (t *Tree) Kill() {
	t.killed.Store(true)
	deadline := time.Now().Add(killBound)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if t.group == nil || !t.group.kill() {
			t.signal(unix.SIGKILL, t.members())
		}
		if t.Empty() || time.Now().After(deadline) {
			return
		}
		time.Sleep(pause)
	}
}

// WaitEmpty waits until nothing of the tree runs, at most for limit.
func (t *Tree) WaitEmpty(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if t.Empty() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
}

// members lists the living processes of the tree at this moment.
func (t *Tree) members() []int {
	if t.group != nil {
		return t.group.processes()
	}
	return scanProcesses().tree(t.id, t.leader)
}

// signalStrays reaches the members that left the leader's process group.
func (t *Tree) signalStrays(sig syscall.Signal) {
	var strays []int
	for _, pid := range t.members() {
		if pgid, err := unix.Getpgid(pid); err == nil && pgid != t.leader {
			strays = append(strays, pid)
		}
	}
	t.signal(sig, strays)
}

func (t *Tree) signal(sig syscall.Signal, pids []int) {
	for _, pid := range pids {
		ignoreGone(unix.Kill(pid, sig))
	}
}
