// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/stream"
)

var (
	errBusy    = errors.New("session is busy: a cell of this context is still running; wait for it, interrupt it, or use another context")
	errRemoved = errors.New("the context was removed")
)

// engine executes the cells of one context, one after the other.
type engine interface {
	// execute runs a cell to its end. Nil means that it ran through.
	execute(c *cell) *stream.Failure
	// alive reports whether the state of earlier cells is still there.
	alive() bool
	// directory is where the code is now, as far as files it makes are concerned.
	directory() string
	// close ends every process, also while a cell runs.
	close()
}

// Context keeps the state that cells of one language leave behind.
type Context struct {
	ID       string
	language *language
	service  *Service
	cwd      string

	mu      sync.Mutex
	engine  engine
	running *cell
	removed bool
	count   int
	lost    bool // an engine with state ended; the next run has to say so
}

// open starts the engine, so that a missing interpreter shows at once and the first run finds it ready.
func (x *Context) open() error {
	started, err := x.start()
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.engine = started
	return nil
}

func (x *Context) start() (engine, error) {
	identity, err := x.service.env.Identify(nil, nil)
	if err != nil {
		return nil, err
	}
	return x.language.start(launch{
		service: x.service, id: x.ID, variables: x.service.env.Compose(nil), identity: identity,
		dir: x.startDirectory(),
	})
}

// launch is what an engine is started with.
type launch struct {
	service   *Service
	id        string
	variables environment.Variables
	identity  environment.Identity
	dir       string
}

func (x *Context) startDirectory() string {
	if info, err := os.Stat(x.cwd); err == nil && info.IsDir() {
		return x.cwd
	}
	return "/"
}

// begin starts a cell. Fresh tells that what earlier cells left is gone.
func (x *Context) begin(c *cell) (fresh bool, err error) {
	if err := x.occupy(c); err != nil {
		return false, err
	}
	if fresh, err = x.revive(c); err != nil {
		x.release()
		return false, err
	}
	go x.supervise(c)
	return fresh, nil
}

func (x *Context) occupy(c *cell) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.removed:
		return errRemoved
	case x.running != nil:
		return errBusy
	}
	x.running = c
	return nil
}

// revive replaces an engine that ended. The context is occupied meanwhile.
func (x *Context) revive(c *cell) (fresh bool, err error) {
	x.mu.Lock()
	current := x.engine
	x.mu.Unlock()
	if current == nil || !current.alive() {
		if current != nil {
			current.close()
			x.lost = x.lost || x.count > 0
		}
		if current, err = x.start(); err != nil {
			return false, err
		}
		x.count = 0
	}
	fresh, x.lost = x.lost, false
	x.count++
	c.count = x.count
	x.mu.Lock()
	defer x.mu.Unlock()
	x.engine = current
	if x.removed {
		current.close()
		return false, errRemoved
	}
	return fresh, nil
}

// supervise runs a cell to its end, whether or not anybody listens.
func (x *Context) supervise(c *cell) {
	begun := time.Now()
	if c.timeout > 0 {
		timer := time.NewTimer(c.timeout)
		defer timer.Stop()
		c.expired = timer.C
	}
	before := look(x.engine.directory())
	failure := x.engine.execute(c)
	took := time.Since(begun)
	files, truncated := before.changes(x.engine.directory())
	x.release()
	c.events.end(func(out *stream.Cell) {
		if len(files) > 0 {
			if err := out.Files(files, truncated); err != nil {
				logLost("files", err)
			}
		}
		if failure != nil {
			out.Fail(*failure)
			return
		}
		out.Complete(took)
	})
}

// release lets the next cell in.
func (x *Context) release() {
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.running.done)
	x.running = nil
}

// interrupt stops the running cell; without one there is nothing to do. It returns when the context is
// free for the next cell, or when that takes long.
func (x *Context) interrupt(caller context.Context) {
	x.mu.Lock()
	running := x.running
	x.mu.Unlock()
	if running == nil {
		return
	}
	running.stop(reasonInterrupted)
	select {
	case <-running.done:
	case <-time.After(2 * askAgain):
	case <-caller.Done():
	}
}

func (x *Context) busy() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running != nil
}

// remove ends the context with everything that its cells started.
func (x *Context) remove() {
	x.mu.Lock()
	x.removed = true
	running, current := x.running, x.engine
	x.mu.Unlock()
	if running != nil {
		running.stop(reasonRemoved)
	}
	if current != nil {
		current.close()
	}
}
