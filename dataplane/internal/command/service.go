// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"errors"
	"log"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// logLimit is how much output one command keeps; the oldest goes first.
const logLimit = 64 << 20

// Service runs commands.
type Service struct {
	supervisor *process.Supervisor
	env        *environment.Environment
	store      *output.Store
	registry   *registry
	// elsewhere interrupts executions of other kinds by their id.
	elsewhere []func(id string) bool
}

// New makes the service of a sandbox.
func New(supervisor *process.Supervisor, env *environment.Environment, store *output.Store) *Service {
	return &Service{supervisor: supervisor, env: env, store: store, registry: newRegistry(store)}
}

// AlsoInterrupts lets DELETE /command end executions that are no commands.
func (s *Service) AlsoInterrupts(interrupt func(id string) bool) {
	s.elsewhere = append(s.elsewhere, interrupt)
}

// begin starts a plan. The command is registered in any case; one that could not start has ended.
// A foreground command comes with a reader that has seen nothing yet.
func (s *Service) begin(p *plan) (*Command, *output.Reader) {
	c := &Command{
		ID: api.NewID(), content: p.content, started: time.Now(), store: s.store, log: output.NewLog(s.store, logLimit),
		done: make(chan struct{}), stops: make(chan string, 1),
	}
	var reader *output.Reader
	if !p.background {
		reader = c.log.Attach()
	}
	s.registry.add(c)
	if err := s.start(c, p); err != nil {
		c.finish(&Outcome{Start: err})
		s.registry.end(c)
		c.archive()
		return c, reader
	}
	go c.supervise(p.timeout, s.registry.end)
	return c, reader
}

func (s *Service) start(c *Command, p *plan) error {
	l, err := p.launch()
	if err != nil {
		return err
	}
	defer func() {
		if err := l.close(); err != nil {
			log.Printf("event=script_not_closed error=%q", err)
		}
	}()
	stdio, err := openStdio(p)
	if err != nil {
		return err
	}
	c.process, err = s.supervisor.Start(s.spec(c.ID, p, l, stdio))
	stdio.CloseChildEnds()
	if err != nil {
		stdio.Abandon()
		return err
	}
	c.stdin = stdio.Stdin
	return c.pump(stdio)
}

func openStdio(p *plan) (*output.Stdio, error) {
	stdio, err := output.OpenStdio()
	if err != nil {
		return nil, err
	}
	if !p.background {
		err = stdio.SeparateStderr()
	}
	if p.stdin {
		err = errors.Join(err, stdio.OpenStdin())
	}
	if err != nil {
		stdio.CloseChildEnds()
		stdio.Abandon()
	}
	return stdio, err
}

func (s *Service) spec(id string, p *plan, l *launch, stdio *output.Stdio) process.Spec {
	files := stdio.Merged()
	if stdio.Stderr != nil {
		files = stdio.Separate()
	}
	if l.script != nil {
		files = append(files, l.script.Fd())
	}
	return process.Spec{
		ID: id, Path: l.path, Argv: l.argv, Env: p.variables.List(), Dir: p.cwd,
		User: p.identity.Credential, Files: files, Run: true,
	}
}

// pump starts to read what the process prints.
func (c *Command) pump(stdio *output.Stdio) error {
	out, err := output.StartPump(stdio.Stdout, func(p []byte) { c.log.Append(output.Stdout, p) })
	if err != nil {
		return err
	}
	c.pumps = append(c.pumps, out)
	if stdio.Stderr == nil {
		return nil
	}
	errs, err := output.StartPump(stdio.Stderr, func(p []byte) { c.log.Append(output.Stderr, p) })
	if err != nil {
		return err
	}
	c.pumps = append(c.pumps, errs)
	return nil
}

// Running counts the commands that run.
func (s *Service) Running() int { return s.registry.running() }
