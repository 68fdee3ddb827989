// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"testing"

	"golang.org/x/sys/unix"
)

var (
	sigkill  = Exit{Code: 137, Signal: unix.SIGKILL}
	reported = Exit{Code: 137}
)

// books is a ledger whose kernel kills at command.
func books() (*ledger, *uint64) {
	kills := new(uint64)
	return newLedger(func() uint64 { return *kills }), kills
}

func TestEveryKillIsClaimedOnce(t *testing.T) {
	l, kills := books()
	victim, innocent, shell := l.open(true), l.open(true), l.open(true)
	if l.judge(l.open(true), sigkill, false).OOM {
		t.Error("a SIGKILL without a kill for memory is none")
	}
	*kills++
	if !l.judge(victim, sigkill, false).OOM {
		t.Error("the victim is not known")
	}
	if got := l.judge(innocent, sigkill, false); got.OOM || got.MemoryLimitHit {
		t.Errorf("the innocent is accused: %+v", got)
	}
	if got := l.judge(shell, reported, false); got.OOM || got.MemoryLimitHit {
		t.Errorf("the innocent is accused: %+v", got)
	}
}

func TestTwoVictims(t *testing.T) {
	l, kills := books()
	first, second, third := l.open(true), l.open(true), l.open(true)
	*kills += 2
	for i, want := range []bool{true, true, false} {
		if got := l.judge([]*account{first, second, third}[i], reported, false).OOM; got != want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

func TestOnlyKillsWithinTheRun(t *testing.T) {
	l, kills := books()
	*kills = 5000
	if l.judge(l.open(true), sigkill, false).OOM {
		t.Error("a kill before the start counts")
	}
	shell := l.open(false)
	*kills++
	l.begin(shell)
	if l.judge(shell, reported, false).OOM {
		t.Error("a kill between runs counts")
	}
	l.begin(shell)
	*kills++
	if !l.judge(shell, reported, false).OOM {
		t.Error("a kill in the run does not count")
	}
}

func TestOurOwnKillsAndOtherEnds(t *testing.T) {
	l, kills := books()
	stopped, other, failed := l.open(true), l.open(true), l.open(true)
	*kills++
	if l.judge(stopped, sigkill, true).OOM || l.judge(failed, Exit{Code: 1}, false).MemoryLimitHit {
		t.Error("no sign of a kill for memory")
	}
	if !l.judge(other, sigkill, false).OOM {
		t.Error("the kill was claimed by somebody else")
	}
}

// TestHiddenVictims: a run that had the sandbox for itself is told, however it ended.
func TestHiddenVictims(t *testing.T) {
	l, kills := books()
	entrypoint := l.open(false)
	run := l.open(true)
	*kills += 3
	if got := l.judge(run, Exit{Code: 1}, false); got.OOM || !got.MemoryLimitHit {
		t.Errorf("%+v", got)
	}
	if l.judge(entrypoint, reported, false).OOM {
		t.Error("the same kills are claimed twice")
	}
	long, short := l.open(true), l.open(true)
	l.end(short)
	*kills++
	if l.judge(long, Exit{Code: 1}, false).MemoryLimitHit {
		t.Error("it was not alone all the time")
	}
}

func TestLedgerForgets(t *testing.T) {
	l, kills := books()
	for range 10 * keptClaims {
		a := l.open(true)
		*kills++
		if !l.judge(a, sigkill, false).OOM {
			t.Fatal("not claimed")
		}
	}
	if len(l.claimed) > keptClaims+1 || len(l.busy) > 0 {
		t.Errorf("%d claims, %d runs are kept", len(l.claimed), len(l.busy))
	}
}

// TestEndsWithoutKills uses real processes.
func TestEndsWithoutKills(t *testing.T) {
	s := supervisor(t)
	for _, script := range []string{"kill -9 $$", "exit 137", "sh -c 'kill -9 $$'; exit $?"} {
		p := launch(t, s, "ledger", script)
		<-p.Done()
		if exit := p.Exit(); exit.OOM || exit.MemoryLimitHit || exit.Code != 137 {
			t.Errorf("%s: %+v", script, exit)
		}
		p.Release()
	}
}
