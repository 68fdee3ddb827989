// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package session owns shell sessions: one long-lived shell each, in which scripts run one after
// the other and find what the ones before left behind. A shell that dies is replaced by one with
// the same exported variables and directory.
package session

import (
	"errors"
	"log"
	"os"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/command"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/shell"
)

// Limits of a run.
const (
	defaultTimeout = 24 * time.Hour
	stopGrace      = 2 * time.Second
	logLimit       = 64 << 20
)

var (
	errNoShell = errors.New("the sandbox's image has neither bash nor sh, so it can have no sessions")
	errClosed  = errors.New("the session was deleted")
)

// Session is one shell session.
type Session struct {
	ID        string
	service   *Service
	variables environment.Variables
	identity  environment.Identity
	cwd       string
	state     *os.File

	turn  chan struct{} // holds a token while nothing runs
	gone  chan struct{} // closed when the session is over
	stops chan string

	mu      sync.Mutex
	running bool
	closed  bool
	// Only the holder of the turn touches these.
	shell *living
	told  bool // a run already said that this shell is gone
}

// run is one script in a session.
type run struct {
	log     *output.Log
	reader  *output.Reader
	started time.Time
	took    time.Duration
	outcome *command.Outcome
	// reset is true when the run lost the shell, or found a new one: functions and unexported
	// variables of earlier runs are gone.
	reset bool
	done  chan struct{}
}

// open starts the shell, so that the first run finds it ready.
func (s *Session) open() (err error) {
	if s.state, err = shell.MemoryFile("state"); err != nil {
		return err
	}
	s.shell, err = startShell(s)
	if err != nil {
		return errors.Join(err, s.state.Close())
	}
	s.turn <- struct{}{}
	return nil
}

func (s *Session) startDirectory() string {
	if info, err := os.Stat(s.cwd); err == nil && info.IsDir() {
		return s.cwd
	}
	return "/"
}

// begin runs a script; the caller holds the turn, which the run gives back at its end.
func (s *Session) begin(script, cwd string, timeout time.Duration) (*run, error) {
	reset, err := s.revive()
	if err != nil {
		return nil, err
	}
	r := &run{log: output.NewLog(s.service.store, logLimit), started: time.Now(), done: make(chan struct{}), reset: reset}
	r.reader = r.log.Attach()
	s.setRunning(true)
	s.shell.Direct(r.log)
	if err := s.shell.execute(script, cwd); err != nil {
		s.shell.Direct(nil)
		r.reader.Detach()
		return nil, err
	}
	again := func() error { return s.again(r, script, cwd) }
	go s.supervise(r, timeout, again)
	return r, nil
}

// again hands a script over to a new shell, because the one before did not get to executing it.
func (s *Session) again(r *run, script, cwd string) error {
	s.shell.Retire()
	if _, err := s.revive(); err != nil {
		return err
	}
	s.shell.Direct(r.log)
	return s.shell.execute(script, cwd)
}

// revive replaces a shell that ended by itself or was killed. It reports true when no run has told so.
func (s *Session) revive() (untold bool, err error) {
	if s.shell != nil && s.shell.Alive() {
		return false, nil
	}
	if s.shell != nil {
		s.shell.Release()
		s.shell = nil
	}
	started, err := startShell(s)
	if err != nil {
		return false, err
	}
	untold, s.told = !s.told, false
	s.shell = started
	return untold, nil
}

// supervise follows a run to its end and passes the turn on.
func (s *Session) supervise(r *run, timeout time.Duration, again func() error) {
	r.outcome = s.await(r, timeout, again)
	r.log.Relax()
	if s.shell != nil {
		s.shell.Drain()
		s.shell.Direct(nil)
		s.told = !s.shell.Alive()
		r.reset = r.reset || s.told
	}
	r.took = time.Since(r.started)
	r.log.Seal()
	s.setRunning(false)
	close(r.done)
	s.pass()
}

// await waits for the script's status, for the shell's death, or for a reason to stop both. A shell
// that did not execute the script is replaced by one that does, once.
func (s *Session) await(r *run, timeout time.Duration, again func() error) *command.Outcome {
	outcome := &command.Outcome{Timeout: timeout}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	verdict := s.attempt(outcome, timer.C)
	if verdict == shell.NotExecuted {
		r.reset = true
		if outcome.Start = again(); outcome.Start != nil {
			return outcome
		}
		verdict = s.attempt(outcome, timer.C)
	}
	if verdict == shell.NotExecuted || verdict == shell.Unclear {
		s.shell.Retire()
		outcome.Lost, r.reset = true, true
	}
	return outcome
}

// attempt waits for the end of what the shell was handed, and ends what is to be stopped.
func (s *Session) attempt(outcome *command.Outcome, timeout <-chan time.Time) (verdict shell.Verdict) {
	verdict, outcome.Exit, outcome.Stopped = shell.Await(s.shell.Shell, timeout, s.stops)
	if verdict == shell.Expired {
		outcome.Stopped = command.ReasonTimeout
	}
	if verdict == shell.Expired || verdict == shell.Stopped {
		s.shell.End(stopGrace)
		outcome.Exit = s.shell.Process.Exit()
	}
	return verdict
}

// stop ends the running script, if there is one.
func (s *Session) stop(reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return false
	}
	select {
	case s.stops <- reason:
	default:
		// It is being stopped already.
	}
	return true
}

func (s *Session) setRunning(running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = running
	select {
	case <-s.stops:
		// A stop for a run that ended meanwhile must not hit the next one.
	default:
	}
	if running && s.closed {
		s.stops <- command.ReasonInterrupted
	}
}

// pass hands the turn to the next run, or ends the session when it was deleted meanwhile.
func (s *Session) pass() {
	s.turn <- struct{}{}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		s.bury()
	}
}

// close ends the session: what runs is interrupted, what waits is refused.
func (s *Session) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if !s.stop(command.ReasonInterrupted) {
		s.bury()
	}
}

// bury ends the shell of a closed session. Whoever gets the turn does it; it is never given back.
func (s *Session) bury() {
	select {
	case <-s.turn:
	default:
		return
	}
	close(s.gone)
	if s.shell != nil {
		s.shell.End(stopGrace)
		s.shell.Release()
	}
	if err := s.state.Close(); err != nil {
		log.Printf("event=session_state_not_closed error=%q", err)
	}
}
