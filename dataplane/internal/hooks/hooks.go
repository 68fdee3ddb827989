// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package hooks owns the commands that the daemon runs by itself: the one before the entrypoint, and
// those that repeat on a schedule.
package hooks

import (
	"errors"
	"fmt"
	"log"
	"strings"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// Times of a hook.
const (
	defaultTimeout = time.Minute
	stopGrace      = 2 * time.Second
)

// excerptSize is how much of a failed hook's last output goes into the error.
const excerptSize = 2 << 10

// Runner runs hooks as the sandbox's user. What they print goes to the sandbox's log.
type Runner struct {
	supervisor *process.Supervisor
	env        *environment.Environment
	print      func([]byte)
}

// NewRunner makes the runner of a sandbox.
func NewRunner(supervisor *process.Supervisor, env *environment.Environment, print func([]byte)) *Runner {
	return &Runner{supervisor: supervisor, env: env, print: print}
}

// Run runs a hook to its end. Any end but an exit with 0 in time is an error.
func (r *Runner) Run(name string, hook boot.Hook) error {
	last := &excerpt{}
	started, pump, err := r.start(name, hook.Command, last)
	if err != nil {
		return fmt.Errorf("the %s hook could not start: %w", name, err)
	}
	defer started.Release()
	timeout := seconds(hook.TimeoutSeconds)
	inTime := wait(started, timeout)
	pump.Drain()
	pump.Abandon()
	exit := started.Exit()
	switch {
	case !inTime:
		return fmt.Errorf("the %s hook did not end within %s%s", name, timeout, last)
	case exit.Signal != 0:
		return fmt.Errorf("the %s hook was killed by %s%s", name, process.SignalName(exit.Signal), last)
	case exit.Code != 0:
		return fmt.Errorf("the %s hook exited with status %d%s", name, exit.Code, last)
	}
	return nil
}

func (r *Runner) start(name string, argv []string, last *excerpt) (*process.Process, *output.Pump, error) {
	spec, err := r.describe(name, argv)
	if err != nil {
		return nil, nil, err
	}
	stdio, err := output.OpenStdio()
	if err != nil {
		return nil, nil, err
	}
	spec.Files = stdio.Merged()
	started, err := r.supervisor.Start(spec)
	stdio.CloseChildEnds()
	if err != nil {
		stdio.Abandon()
		return nil, nil, err
	}
	pump, err := output.StartPump(stdio.Stdout, func(p []byte) {
		r.print(p)
		last.add(p)
	})
	return started, pump, err
}

func (r *Runner) describe(name string, argv []string) (process.Spec, error) {
	if len(argv) == 0 || argv[0] == "" {
		return process.Spec{}, errors.New("its command is empty")
	}
	variables := r.env.Compose(nil)
	program, err := variables.Program(argv[0])
	if err != nil {
		return process.Spec{}, err
	}
	identity, err := r.env.Identify(nil, nil)
	return process.Spec{
		ID: "hook-" + name, Path: program, Argv: argv, Env: variables.List(), Dir: r.env.Cwd(), User: identity.Credential,
	}, err
}

// wait returns whether the process ended in time; it has ended in any case.
func wait(started *process.Process, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-started.Done():
		return true
	case <-timer.C:
	}
	started.SignalTree(syscall.SIGTERM)
	if !started.Tree.WaitEmpty(stopGrace) {
		started.Tree.Kill()
	}
	<-started.Done()
	return false
}

func seconds(given float64) time.Duration {
	if given <= 0 {
		return defaultTimeout
	}
	return time.Duration(given * float64(time.Second))
}

// Repeat runs hooks by their schedules for as long as the daemon lives. One that still runs when its
// time comes again is not started twice.
func (r *Runner) Repeat(schedules []Scheduled) {
	for _, scheduled := range schedules {
		go func() {
			for {
				time.Sleep(time.Until(scheduled.when.next(time.Now())))
				if err := r.Run(scheduled.hook.Name, scheduled.hook); err != nil {
					log.Printf("event=hook_failed error=%q", err)
				}
			}
		}()
	}
}

// excerpt keeps the last bytes that a hook printed.
type excerpt struct {
	bytes []byte
}

func (e *excerpt) add(p []byte) {
	e.bytes = append(e.bytes, p...)
	if extra := len(e.bytes) - excerptSize; extra > 0 {
		e.bytes = append(e.bytes[:0], e.bytes[extra:]...)
	}
}

// String is empty, or a colon and the text.
func (e *excerpt) String() string {
	text := strings.TrimSpace(string(e.bytes))
	if text == "" {
		return ""
	}
	return ": " + text
}
