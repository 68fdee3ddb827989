// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package shell

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/process"
)

// How soon and how often a look is taken at a shell that has not reported.
const (
	firstLook = 25 * time.Millisecond
	lastLook  = 400 * time.Millisecond
)

// Verdict says how an attempt to execute a text ended.
type Verdict uint8

// The verdicts.
const (
	Ended       Verdict = iota // with a status, or together with the shell
	Expired                    // its time was over; the text goes on
	Stopped                    // somebody wants it to stop; the text goes on
	NotExecuted                // the shell did not get to it
	Unclear                    // executed, but the shell did not say how it ended
)

// Await waits for the end of the text that the shell was handed, or for a reason to stop it.
func Await[S any](sh *Shell, expired <-chan time.Time, stops <-chan S) (verdict Verdict, exit process.Exit, stop S) {
	sh.Process.BeginRun()
	pause := firstLook
	look := time.NewTimer(pause)
	defer look.Stop()
	for {
		select {
		case code := <-sh.results:
			return Ended, sh.Process.EndRun(code), stop
		case <-sh.Process.Done():
			verdict, exit = sh.autopsy()
			return verdict, exit, stop
		case <-look.C:
			if sh.idle() {
				verdict, exit = sh.inquire()
				return verdict, exit, stop
			}
			pause = min(2*pause, lastLook)
			look.Reset(pause)
		case <-expired:
			return Expired, exit, stop
		case stop = <-stops:
			return Stopped, exit, stop
		}
	}
}

// autopsy is the verdict on a shell that is gone: by exit, exec or a signal of the text.
func (sh *Shell) autopsy() (Verdict, process.Exit) {
	code, reported, executed := sh.heard()
	switch {
	case !executed:
		return NotExecuted, process.Exit{}
	case reported:
		return Ended, sh.Process.EndRun(code)
	}
	return Ended, sh.Process.Exit()
}

// inquire is the verdict on a shell that waits for orders.
func (sh *Shell) inquire() (Verdict, process.Exit) {
	code, reported, executed := sh.heard()
	switch {
	case reported:
		return Ended, sh.Process.EndRun(code)
	case executed:
		return Unclear, process.Exit{}
	}
	return NotExecuted, process.Exit{}
}

// hear takes what the shell says on the status channel.
func (sh *Shell) hear(data []byte) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.report = append(sh.report, data...)
	for {
		line, rest, found := bytes.Cut(sh.report, []byte("\n"))
		if !found {
			return
		}
		sh.take(string(line))
		sh.report = append([]byte(nil), rest...)
	}
}

// take notes a line. A status without a beginning is that of our own orders: it says nothing.
func (sh *Shell) take(line string) {
	if line == Begun {
		sh.begun = true
		return
	}
	code, err := strconv.Atoi(line)
	if err != nil || !sh.begun {
		return
	}
	select {
	case sh.results <- code:
	default:
		// The run has its status already.
	}
}

// heard says, for a shell that is through with its orders or gone, what it had to say.
func (sh *Shell) heard() (code int, reported, executed bool) {
	sh.said.Drain()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	select {
	case code := <-sh.results:
		return code, true, true
	default:
		return 0, false, sh.begun
	}
}

// idle reports whether the shell is back at reading orders. It reads one line at a time, so that an
// empty line, sent once it has taken the order, stays in the pipe for as long as the order takes.
// A look costs one system call; a shell whose user turned execution off can be known by nothing else.
func (sh *Shell) idle() bool {
	unread, err := unix.IoctlGetInt(int(sh.orders.Fd()), unix.TIOCINQ)
	if err != nil || unread > 0 {
		return false
	}
	if sh.probed {
		return true
	}
	sh.probed = true
	return sh.Order("\n") != nil
}
