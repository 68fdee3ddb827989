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
	"casulo.dev/dataplane/internal/process"
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
	shell   *shell // only touched by the holder of the turn
}

// run is one script in a session.
type run struct {
	log     *output.Log
	reader  *output.Reader
	started time.Time
	took    time.Duration
	outcome *command.Outcome
	done    chan struct{}
}

// open starts the shell, so that the first run finds it ready.
func (s *Session) open() (err error) {
	if s.state, err = memoryFile("state"); err != nil {
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
	if err := s.revive(); err != nil {
		return nil, err
	}
	r := &run{log: output.NewLog(s.service.store, logLimit), started: time.Now(), done: make(chan struct{})}
	r.reader = r.log.Attach()
	s.setRunning(true)
	s.shell.direct(r.log)
	if err := s.shell.execute(script, cwd); err != nil {
		s.shell.direct(nil)
		r.reader.Detach()
		return nil, err
	}
	go s.supervise(r, timeout)
	return r, nil
}

// revive replaces a shell that ended by itself or was killed.
func (s *Session) revive() error {
	if s.shell != nil && s.shell.alive() {
		return nil
	}
	if s.shell != nil {
		s.shell.release()
		s.shell = nil
	}
	started, err := startShell(s)
	if err == nil {
		s.shell = started
	}
	return err
}

// supervise follows a run to its end and passes the turn on.
func (s *Session) supervise(r *run, timeout time.Duration) {
	r.outcome = s.await(timeout)
	r.log.Relax()
	s.shell.pump.Drain()
	s.shell.direct(nil)
	r.took = time.Since(r.started)
	r.log.Seal()
	s.setRunning(false)
	close(r.done)
	s.pass()
}

// await waits for the script's status, for the shell's death, or for a reason to stop both.
func (s *Session) await(timeout time.Duration) *command.Outcome {
	outcome := &command.Outcome{Timeout: timeout}
	killsBefore := s.service.supervisor.OOMKills()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case code := <-s.shell.results:
		outcome.Exit = process.Exit{Code: code}
		outcome.Exit.OOM = outcome.Exit.LooksKilled() && s.service.supervisor.OOMKills() > killsBefore
		return outcome
	case <-s.shell.process.Done():
	case <-timer.C:
		outcome.Stopped = command.ReasonTimeout
		s.shell.end(stopGrace)
	case outcome.Stopped = <-s.stops:
		s.shell.end(stopGrace)
	}
	outcome.Exit = s.shell.process.Exit()
	return outcome
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
		s.shell.end(stopGrace)
		s.shell.release()
	}
	if err := s.state.Close(); err != nil {
		log.Printf("event=session_state_not_closed error=%q", err)
	}
}
