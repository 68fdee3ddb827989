// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package pty owns terminals: a shell on a pseudo terminal or on pipes that outlives its viewers,
// what it printed, and the WebSocket through which it is seen and fed.
package pty

import (
	"errors"
	"log"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// historyLimit is how much output a viewer can catch up with. It is more than the contract's MiB,
// because a terminal turns every line feed into two bytes.
const historyLimit = 4 << 20

// hangupGrace is how long the programs of a deleted terminal may take to end.
const hangupGrace = 300 * time.Millisecond

// lastWords is how long the last output of a terminal may take that survivors keep open.
const lastWords = 200 * time.Millisecond

// defaultType is what programs believe to talk to when the environment does not say.
const defaultType = "xterm-256color"

// Modes of a running shell.
const (
	modeTerminal = "pty"
	modePipe     = "pipe"
)

// Terminal is one terminal session. Its shell starts with the first viewer, and again after it ended.
type Terminal struct {
	ID       string
	service  *Service
	command  string
	cwd      string
	identity environment.Identity
	history  *output.Log

	mu     sync.Mutex
	size   size
	shell  *shell
	owner  *client // who may type
	closed bool
}

// shell is one run of the terminal's program.
type shell struct {
	mode    string
	process *process.Process
	input   *os.File // the terminal, or the writing end of standard input
	typed   *input
	pumps   []*output.Pump
	ended   chan struct{} // closed when the exit is known and all output is in the history
	exit    process.Exit
}

var errClosed = errors.New("the terminal was deleted")

// run returns the living shell, or starts one.
func (t *Terminal) run(mode string) (*shell, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	if t.running() {
		return t.shell, nil
	}
	started, err := t.start(mode)
	if err != nil {
		return nil, err
	}
	t.shell = started
	go started.follow()
	return started, nil
}

// running needs the lock.
func (t *Terminal) running() bool {
	if t.shell == nil {
		return false
	}
	select {
	case <-t.shell.ended:
		return false
	default:
		return true
	}
}

func (t *Terminal) start(mode string) (*shell, error) {
	variables := t.service.env.ComposeFor(t.identity, nil)
	if variables["TERM"] == "" {
		variables["TERM"] = defaultType
	}
	program, err := variables.Shell()
	if err != nil {
		return nil, errors.New("the sandbox's image has neither bash nor sh")
	}
	spec := process.Spec{
		ID: t.ID, Path: program.Path, Argv: arguments(program, t.command), Env: variables.List(),
		Dir: t.cwd, User: t.identity.Credential, Session: true,
	}
	if mode == modePipe {
		return t.startOnPipes(spec)
	}
	return t.startOnTerminal(spec)
}

func arguments(program environment.Shell, command string) []string {
	argv := []string{program.Name()}
	if program.Bash {
		argv = append(argv, "--noprofile", "--norc")
	}
	if command != "" {
		argv = append(argv, "-c", command)
	}
	return argv
}

func (t *Terminal) startOnTerminal(spec process.Spec) (*shell, error) {
	master, slave, err := openTerminal(t.size)
	if err != nil {
		return nil, err
	}
	if spec.User != nil {
		if err := unix.Fchown(slave, int(spec.User.Uid), int(spec.User.Gid)); err != nil {
			log.Printf("event=terminal_not_owned error=%q", err)
		}
	}
	spec.Terminal = true
	spec.Files = []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	started, err := t.service.supervisor.Start(spec)
	if err = errors.Join(err, unix.Close(slave)); err != nil {
		return nil, errors.Join(err, master.Close())
	}
	sh := newShell(modeTerminal, started, master)
	return sh, sh.pump(master, t.history, output.Stdout)
}

func (t *Terminal) startOnPipes(spec process.Spec) (*shell, error) {
	stdio, err := output.OpenStdio()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stdio.SeparateStderr(), stdio.OpenStdin()); err != nil {
		stdio.CloseChildEnds()
		stdio.Abandon()
		return nil, err
	}
	spec.Files = stdio.Separate()
	started, err := t.service.supervisor.Start(spec)
	stdio.CloseChildEnds()
	if err != nil {
		stdio.Abandon()
		return nil, err
	}
	sh := newShell(modePipe, started, stdio.Stdin)
	return sh, errors.Join(sh.pump(stdio.Stdout, t.history, output.Stdout), sh.pump(stdio.Stderr, t.history, output.Stderr))
}

func newShell(mode string, started *process.Process, to *os.File) *shell {
	sh := &shell{mode: mode, process: started, input: to, typed: newInput(to), ended: make(chan struct{})}
	go sh.typed.run(started.Done())
	return sh
}

func (sh *shell) pump(source *os.File, history *output.Log, stream output.Stream) error {
	pump, err := output.StartPump(source, func(p []byte) { history.Append(stream, p) })
	if err == nil {
		sh.pumps = append(sh.pumps, pump)
	}
	return err
}

// follow waits for the end of the shell and of its output. Programs that hold on to a terminal get
// a hangup, as when a window is closed.
func (sh *shell) follow() {
	<-sh.process.Done()
	for _, pump := range sh.pumps {
		if sh.mode == modeTerminal {
			awaitHangup(pump)
		}
		pump.Drain()
		pump.Abandon()
	}
	if sh.mode == modePipe {
		// The reader is gone; unread input has no use.
		_ = sh.input.Close()
	}
	sh.exit = sh.process.Exit()
	sh.process.Release()
	close(sh.ended)
}

// awaitHangup lets the kernel pass on what it still holds between the two ends of a terminal, which
// no query shows. The end of file comes after the last byte, unless somebody keeps the terminal open.
func awaitHangup(pump *output.Pump) {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-pump.Closed():
	case <-timer.C:
	}
}

// signal goes to the program in the foreground; those that end things also reach the shell itself.
func (sh *shell) signal(sig syscall.Signal) {
	if sh.mode == modeTerminal {
		group, err := foreground(sh.input)
		if err == nil && group > 0 && group != sh.process.PID {
			sh.process.SignalOther(-group, sig)
			if sig == unix.SIGINT || sig == unix.SIGQUIT {
				return
			}
		}
	}
	sh.process.SignalGroup(sig)
}

// resize remembers the size for later shells too.
func (t *Terminal) resize(s size) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size = s
	if !t.running() || t.shell.mode != modeTerminal {
		return nil
	}
	return resize(t.shell.input, s)
}

// close ends the shell with everything below it. Viewers see it exit.
func (t *Terminal) close() {
	t.mu.Lock()
	t.closed = true
	var sh *shell
	if t.running() {
		sh = t.shell
	}
	t.mu.Unlock()
	if sh != nil {
		sh.process.SignalTree(unix.SIGHUP)
		sh.process.SignalTree(unix.SIGCONT)
		if !sh.process.Tree.WaitEmpty(hangupGrace) {
			sh.process.Tree.Kill()
		}
		<-sh.ended
	}
	t.history.Drop()
}
