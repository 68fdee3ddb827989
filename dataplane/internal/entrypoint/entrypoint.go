// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package entrypoint owns the user's main process: it is started once, its output goes to the
// sandbox's log, and its end is the end of the sandbox.
package entrypoint

import (
	"errors"
	"fmt"
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

// treeID names the entrypoint's tree; command ids are longer.
const treeID = "entrypoint"

// InvalidError says that the entrypoint names nothing that could be started.
type InvalidError struct {
	cause error
}

func (e *InvalidError) Error() string { return "the entrypoint cannot be started: " + e.cause.Error() }

func (e *InvalidError) Unwrap() error { return e.cause }

// Entrypoint is the running main process.
type Entrypoint struct {
	process *process.Process
	pump    *output.Pump
	stop    sync.Once
}

// Start runs the entrypoint as the sandbox's user, in the sandbox's directory, which is made when
// it is missing, as container engines do.
func Start(supervisor *process.Supervisor, env *environment.Environment, argv []string, log *Log) (*Entrypoint, error) {
	spec, err := describe(env, argv)
	if err != nil {
		return nil, err
	}
	stdio, err := output.OpenStdio()
	if err != nil {
		return nil, err
	}
	spec.Files = stdio.Merged()
	started, err := supervisor.Start(spec)
	stdio.CloseChildEnds()
	if err != nil {
		stdio.Abandon()
		return nil, classify(err)
	}
	spare(started.PID)
	pump, err := output.StartPump(stdio.Stdout, log.Append)
	if err != nil {
		return nil, err
	}
	return &Entrypoint{process: started, pump: pump}, nil
}

// oomPreference lies between the daemon's and the commands': when memory runs out a command goes
// first, since with the entrypoint the whole sandbox ends.
const oomPreference = "250"

func spare(pid int) {
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	if err := os.WriteFile(name, []byte(oomPreference), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Printf("event=entrypoint_not_spared error=%q", err)
	}
}

func describe(env *environment.Environment, argv []string) (process.Spec, error) {
	if len(argv) == 0 || argv[0] == "" {
		return process.Spec{}, &InvalidError{errors.New("it is empty")}
	}
	variables := env.Compose(nil)
	program, err := variables.Program(argv[0])
	if err != nil {
		return process.Spec{}, &InvalidError{err}
	}
	identity, err := env.Identify(nil, nil)
	if err != nil {
		return process.Spec{}, err
	}
	if err := MakeDirectory(env.Cwd()); err != nil {
		return process.Spec{}, fmt.Errorf("make the working directory: %w", err)
	}
	return process.Spec{
		ID: treeID, Path: program, Argv: argv, Env: variables.List(), Dir: env.Cwd(),
		User: identity.Credential, Session: true,
	}, nil
}

// OccupiedError says that something that is no directory stands where one is wanted.
type OccupiedError struct{ cause error }

func (e *OccupiedError) Error() string { return e.cause.Error() }
func (e *OccupiedError) Unwrap() error { return e.cause }

// MakeDirectory makes a directory and those above it, unless they are there.
func MakeDirectory(path string) error {
	err := os.MkdirAll(path, 0o755)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ELOOP) {
		return &OccupiedError{err}
	}
	return err
}

// classify tells a wrong entrypoint from a host that cannot start one now.
func classify(err error) error {
	var start *process.StartError
	if !errors.As(err, &start) {
		return err
	}
	switch start.Errno {
	case unix.ENOENT, unix.EACCES, unix.ENOEXEC, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG:
		return &InvalidError{start}
	}
	return err
}

// Stop asks the entrypoint's process group to end, and kills its tree after the grace time.
func (e *Entrypoint) Stop(grace time.Duration) {
	e.stop.Do(func() {
		e.process.SignalGroup(syscall.SIGTERM)
		e.process.SignalGroup(syscall.SIGCONT)
		go func() {
			select {
			case <-e.process.Done():
			case <-time.After(grace):
				e.process.SignalTree(syscall.SIGKILL)
			}
		}()
	})
}

// Wait returns how the entrypoint ended, after its last output is in the log.
func (e *Entrypoint) Wait() process.Exit {
	<-e.process.Done()
	e.pump.Drain()
	return e.process.Exit()
}
