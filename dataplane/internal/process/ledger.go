// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"sync"

	"golang.org/x/sys/unix"
)

// ledger decides whose end a kill for memory was. The kernel only counts them for the whole sandbox, so
// every step of the counter is claimed once: by a process that died of SIGKILL, or by a shell that
// reports such a child, and only when the step happened while that ran.
type ledger struct {
	count func() uint64

	mu      sync.Mutex
	claimed map[uint64]bool
	busy    map[*account]bool
}

// keptClaims bounds the memory of a ledger: steps further back are taken for claimed.
const keptClaims = 1024

// account is what a process may claim: the steps after the one where its run began.
type account struct {
	before uint64
	// alone is true as long as no other run overlapped with this one.
	alone bool
}

func newLedger(count func() uint64) *ledger {
	return &ledger{count: count, claimed: map[uint64]bool{}, busy: map[*account]bool{}}
}

// open starts an account. A process that waits for work, or serves, is no run.
func (l *ledger) open(run bool) *account {
	a := &account{before: l.count()}
	if run {
		l.begin(a)
	}
	return a
}

// begin starts a run of a process that exists already.
func (l *ledger) begin(a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.before = l.count()
	a.alone = len(l.busy) == 0
	for other := range l.busy {
		other.alone = false
	}
	l.busy[a] = true
}

// end closes a run without a judgement.
func (l *ledger) end(a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, a)
	a.alone = false
}

// judge completes an exit and ends the run. Ours says that we sent the SIGKILL.
func (l *ledger) judge(a *account, exit Exit, ours bool) Exit {
	l.mu.Lock()
	defer l.mu.Unlock()
	looksKilled := exit.LooksKilled() && !ours
	limit := 0
	switch {
	case a.alone && l.busy[a]:
		limit = keptClaims
	case looksKilled:
		limit = 1
	}
	delete(l.busy, a)
	exit.MemoryLimitHit = l.claim(a.before, limit) > 0
	exit.OOM = exit.MemoryLimitHit && looksKilled
	return exit
}

// claim takes up to limit steps after before, the oldest first, and says how many there were.
func (l *ledger) claim(before uint64, limit int) (taken int) {
	if limit == 0 {
		return 0
	}
	now := l.count()
	var oldest uint64
	if now > keptClaims {
		oldest = now - keptClaims
	}
	for step := range l.claimed {
		if step <= oldest {
			delete(l.claimed, step)
		}
	}
	for step := max(before, oldest) + 1; step <= now && taken < limit; step++ {
		if !l.claimed[step] {
			l.claimed[step] = true
			taken++
		}
	}
	return taken
}

// BeginRun says that a process that lives on, such as a shell, is given something to do: from here on
// kills for memory may concern that.
func (p *Process) BeginRun() { p.supervisor.ledger.begin(p.account) }

// EndRun judges the exit code that the process reports for what it did. When the process itself
// ended instead, Exit says how, in the same way.
func (p *Process) EndRun(code int) Exit {
	return p.supervisor.ledger.judge(p.account, Exit{Code: code}, p.killed.Load() || p.Tree.killed.Load())
}

// finish notes how the process ended. The supervisor calls it once.
func (p *Process) finish(status unix.WaitStatus) {
	exit := Exit{Code: status.ExitStatus()}
	if status.Signaled() {
		exit = Exit{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	p.exit = p.supervisor.ledger.judge(p.account, exit, p.killed.Load() || p.Tree.killed.Load())
	close(p.done)
}
