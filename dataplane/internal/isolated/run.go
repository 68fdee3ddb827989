// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/shell"
	"casulo.dev/dataplane/internal/stream"
)

// logLimit is how much output one run keeps; the oldest goes first.
const logLimit = 64 << 20

// maxState bounds what is read of a state: programs of the session may write into it, too.
const maxState = 64 << 20

// stateLimit is how long a shell may take to write its state.
const stateLimit = time.Second

// Why a run was ended by us.
const (
	stoppedTimeout = "timeout"
	stoppedDeleted = "interrupted"
	stoppedAsked   = "asked"
	stoppedLost    = "session_reset"
)

// lost is what a run says that made its shell unusable.
const lost = "the session's shell stopped executing commands (as after set -n, or when its builtins were redefined) " +
	"and did not say how this one ended; the session goes on with a new shell"

// run is one text that runs, or ran, in a session.
type run struct {
	id      string
	log     *output.Log
	started time.Time
	done    chan struct{}
	asked   chan struct{} // holds a token once the run is asked to end

	mu       sync.Mutex
	finished time.Time
	ending   ending
}

// ending is how a run ended.
type ending struct {
	exit    process.Exit
	stopped string
	limit   time.Duration
}

func newRun(store *output.Store) *run {
	return &run{
		id: api.NewUUID(), log: output.NewLog(store, logLimit), started: time.Now(), done: make(chan struct{}),
		asked: make(chan struct{}, 1),
	}
}

func (r *run) finish(end ending) {
	r.mu.Lock()
	r.finished, r.ending = time.Now(), end
	r.mu.Unlock()
	r.log.Seal()
	close(r.done)
}

func (r *run) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// trouble is what went wrong besides the text's own exit status; empty when nothing did.
func (e ending) trouble() (sentence, reason string) {
	switch {
	case e.stopped == stoppedTimeout:
		return fmt.Sprintf("the run was ended after its limit of %g s", e.limit.Seconds()), stoppedTimeout
	case e.stopped == stoppedAsked:
		return "the run was interrupted", "interrupted"
	case e.stopped == stoppedLost:
		return lost, stoppedLost
	case e.stopped != "":
		return "the session was deleted while this ran", e.stopped
	case e.exit.OOM:
		return "out of memory: the kernel killed a process of this run at the sandbox's memory limit", "oom"
	case e.exit.Signal != 0:
		return "the shell of the run was ended by " + process.SignalName(e.exit.Signal), "signal"
	}
	return "", ""
}

// failure is the terminal event of a run that did not succeed; nil for success.
func (e ending) failure() *stream.Failure {
	if sentence, reason := e.trouble(); sentence != "" {
		made := &stream.Failure{
			Name: "RuntimeError", Value: sentence, Traceback: []string{sentence}, Reason: reason, Text: sentence,
			MemoryLimitHit: e.exit.MemoryLimitHit,
		}
		if e.exit.Signal != 0 {
			made.Signal = process.SignalName(e.exit.Signal)
		}
		return made
	}
	if e.exit.Code == 0 {
		return nil
	}
	code := strconv.Itoa(e.exit.Code)
	return &stream.Failure{
		Name: "ExitError", Value: code, Traceback: []string{"exit status " + code}, Reason: "exit", Text: code,
		MemoryLimitHit: e.exit.MemoryLimitHit,
	}
}

// foreground runs a text in the session's shell. The caller holds the turn, which the run gives back.
func (s *session) foreground(text string, variables map[string]string, limit time.Duration) (*run, *output.Reader, error) {
	if err := s.revive(); err != nil {
		return nil, nil, err
	}
	r := newRun(s.service.store)
	reader := r.log.Attach()
	s.shell.Direct(r.log)
	if err := s.shell.execute(text, variables); err != nil {
		s.shell.Direct(nil)
		reader.Detach()
		return nil, nil, err
	}
	again := func() error { return s.again(r, text, variables) }
	go s.supervise(r, limit, again)
	return r, reader, nil
}

// again hands a text over to a new shell, because the one before did not get to executing it.
func (s *session) again(r *run, text string, variables map[string]string) error {
	s.shell.Retire()
	if err := s.revive(); err != nil {
		return err
	}
	s.shell.Direct(r.log)
	return s.shell.execute(text, variables)
}

// supervise follows a foreground run to its end and passes the turn on.
func (s *session) supervise(r *run, limit time.Duration, again func() error) {
	end := s.await(limit, again)
	r.log.Relax()
	s.shell.Drain()
	s.shell.Direct(nil)
	r.finish(end)
	s.leave()
	s.turn <- struct{}{}
}

// await follows a text to its end. A shell that did not execute it is replaced by one that does, once.
func (s *session) await(limit time.Duration, again func() error) ending {
	expired, cancel := after(limit)
	defer cancel()
	end := ending{limit: limit}
	verdict := s.attempt(&end, expired)
	if verdict == shell.NotExecuted && s.world.alive() {
		if err := again(); err != nil {
			log.Printf("event=session_shell_not_replaced id=%s error=%q", s.id, err)
			end.stopped = stoppedLost
			return end
		}
		verdict = s.attempt(&end, expired)
	}
	if verdict == shell.NotExecuted || verdict == shell.Unclear {
		s.shell.Retire()
		end.stopped = stoppedLost
	}
	return end
}

// attempt waits for the end of what the shell was handed, and ends what is to be stopped.
func (s *session) attempt(end *ending, expired <-chan time.Time) (verdict shell.Verdict) {
	verdict, end.exit, _ = shell.Await(s.shell.Shell, expired, s.gone)
	switch verdict {
	case shell.Expired:
		end.stopped = stoppedTimeout
		s.shell.End(stopGrace)
	case shell.Stopped:
		end.stopped = stoppedDeleted
		s.shell.End(0)
	default:
		return verdict
	}
	end.exit = s.shell.Process.Exit()
	return verdict
}

// after is a timer that a limit of 0 leaves out.
func after(limit time.Duration) (<-chan time.Time, func()) {
	if limit <= 0 {
		return nil, func() {}
	}
	timer := time.NewTimer(limit)
	return timer.C, func() { timer.Stop() }
}

// background starts a shell of its own that begins with the session's variables, functions and directory.
func (s *session) background(text string, variables map[string]string, limit time.Duration) (*run, error) {
	state, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	program, err := shell.MemoryFile("text")
	if err != nil {
		closeLogged(state)
		return nil, err
	}
	defer closeLogged(state, program)
	if err := shell.Rewrite(program, text+"\x00"); err != nil {
		return nil, err
	}
	stdio, err := output.OpenStdio()
	if err != nil {
		return nil, err
	}
	r := newRun(s.service.store)
	started, err := s.service.supervisor.Start(s.backgroundSpec(r.id, stdio, program, state, variables))
	stdio.CloseChildEnds()
	if err != nil {
		stdio.Abandon()
		return nil, err
	}
	pump, err := output.StartPump(stdio.Stdout, func(data []byte) { r.log.Append(output.Stdout, data) })
	if err != nil {
		return nil, err
	}
	go s.superviseBackground(r, started, pump, limit)
	return r, nil
}

func (s *session) backgroundSpec(
	id string, stdio *output.Stdio, text, state *os.File, variables map[string]string,
) process.Spec {
	standard := stdio.Merged()
	files := shell.Layout(map[int]*os.File{textFD: text, stateFD: state})
	copy(files, standard)
	return process.Spec{
		ID: id, Path: s.as.program, Argv: []string{"bash", "--noprofile", "--norc", "-c", backgroundLine(variables)},
		Env: s.as.variables.List(), Dir: s.as.cwd, User: s.as.credential, Files: files, Inside: s.world.join,
		Run: true,
	}
}

func (s *session) superviseBackground(r *run, started *process.Process, pump *output.Pump, limit time.Duration) {
	expired, cancel := after(limit)
	defer cancel()
	end := ending{limit: limit}
	select {
	case <-started.Done():
	case <-expired:
		end.stopped = stoppedTimeout
		started.Tree.Kill()
		<-started.Done()
	case <-r.asked:
		end.stopped = stoppedAsked
		endTree(started)
	}
	r.log.Relax()
	pump.Drain()
	end.exit = started.Exit()
	started.Release()
	r.finish(end)
	r.log.Archive()
	s.leave()
	<-pump.Closed()
}

// endTree ends a process and everything below it, with grace for cleaning up.
func endTree(started *process.Process) {
	started.SignalTree(syscall.SIGTERM)
	started.SignalTree(syscall.SIGCONT)
	if !started.Tree.WaitEmpty(stopGrace) {
		started.Tree.Kill()
	}
	<-started.Done()
}

// Interrupt ends the background run with an id. False means that none such is running.
func (s *Service) Interrupt(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.sessions {
		if found := each.find(id); found != nil && found.running() {
			select {
			case found.asked <- struct{}{}:
			default:
				// It is ending already.
			}
			return true
		}
	}
	return false
}

// snapshot copies the state of the last finished run, so that the next one may change it.
func (s *session) snapshot() (*os.File, error) {
	taken, err := shell.MemoryFile("state")
	if err != nil {
		return nil, err
	}
	text, err := s.readState()
	if err == nil {
		err = shell.Rewrite(taken, text)
	}
	if err != nil {
		closeLogged(taken)
		return nil, err
	}
	return taken, nil
}

// readState reads what the shell kept. It writes that now and then: half of it is read again, for as
// long as a shell may need that is not killed meanwhile.
func (s *session) readState() (string, error) {
	deadline := time.Now().Add(stateLimit)
	for {
		size := fileSize(s.state)
		if size > maxState {
			return "", errors.New("the session's variables and functions are larger than 64 MiB")
		}
		content := make([]byte, size)
		n, err := s.state.ReadAt(content, 0)
		text := string(content[:n])
		whole := err == nil && strings.HasSuffix(text, "#\n")
		if whole || time.Now().After(deadline) {
			return text, nil
		}
		time.Sleep(time.Millisecond)
	}
}

func fileSize(file *os.File) int64 {
	info, err := file.Stat()
	if err != nil {
		log.Printf("event=session_state_unreadable error=%q", err)
		return 0
	}
	return info.Size()
}
