// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package command owns commands: it starts them, follows them to their end whether or not anybody
// listens, and keeps how they ended and what they printed readable by id.
package command

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// stopGrace is how long a command may take to end after SIGTERM.
const stopGrace = 2 * time.Second

// ErrNotRunning says that a command ended before it could be stopped or fed.
var ErrNotRunning = errors.New("the command is not running")

// Command is one started command, running or ended.
type Command struct {
	ID      string
	started time.Time
	store   *output.Store
	stops   chan string

	mu       sync.Mutex
	log      *output.Log
	done     chan struct{}
	content  string
	archived *output.Log // content that is too long to stay in memory
	stdin    *os.File
	process  *process.Process
	pumps    []*output.Pump
	finished time.Time
	outcome  *Outcome
}

// output is the log of what the command printed.
func (c *Command) output() *output.Log {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log
}

// ended is closed once the outcome is known.
func (c *Command) ended() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Stop ends a running command and its tree: SIGTERM first, SIGKILL after the grace time.
func (c *Command) Stop(reason string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcome != nil {
		return ErrNotRunning
	}
	select {
	case c.stops <- reason:
	default:
		// It is being stopped already.
	}
	return nil
}

// Feed copies to the command's standard input until the source ends.
func (c *Command) Feed(source io.Reader) (int64, error) {
	c.mu.Lock()
	stdin := c.stdin
	c.mu.Unlock()
	if stdin == nil {
		return 0, ErrNotRunning
	}
	return io.Copy(stdin, source)
}

// CloseStdin lets the command see the end of its input.
func (c *Command) CloseStdin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin == nil {
		return nil
	}
	err := c.stdin.Close()
	c.stdin = nil
	return err
}

// supervise follows the process to its end, and the pipes to theirs.
func (c *Command) supervise(timeout time.Duration, ended func(*Command)) {
	outcome := &Outcome{Timeout: timeout}
	killAt := c.await(outcome)
	if outcome.Stopped != "" {
		c.endTree(killAt)
	}
	for _, pump := range c.pumps {
		c.log.Relax()
		pump.Drain()
	}
	outcome.Exit = c.process.Exit()
	c.process.Release()
	c.finish(outcome)
	ended(c)
	for _, pump := range c.pumps {
		<-pump.Closed()
	}
	c.archive()
}

// await returns when the process was reaped, and until when the rest of its tree has grace.
func (c *Command) await(outcome *Outcome) (killAt time.Time) {
	var expired, kill <-chan time.Time
	if outcome.Timeout > 0 {
		timer := time.NewTimer(outcome.Timeout)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		reason := ""
		select {
		case <-c.process.Done():
			return killAt
		case <-expired:
			reason = ReasonTimeout
		case reason = <-c.stops:
		case <-kill:
			c.process.Tree.Kill()
		}
		if reason != "" && outcome.Stopped == "" {
			outcome.Stopped = reason
			killAt = time.Now().Add(stopGrace)
			kill = time.After(stopGrace)
			c.process.SignalTree(syscall.SIGTERM)
			c.process.SignalTree(syscall.SIGCONT)
		}
	}
}

// endTree gives the descendants of a stopped command the rest of its grace time.
func (c *Command) endTree(killAt time.Time) {
	if !c.process.Tree.WaitEmpty(time.Until(killAt)) {
		c.process.Tree.Kill()
	}
}

// finish publishes the outcome; the output up to here is complete.
func (c *Command) finish(outcome *Outcome) {
	c.mu.Lock()
	c.outcome, c.finished = outcome, time.Now()
	stdin := c.stdin
	c.stdin = nil
	c.mu.Unlock()
	if stdin != nil {
		// The reader is gone; there is nothing left to deliver.
		_ = stdin.Close()
	}
	c.log.Seal()
	close(c.done)
}

// What all commands share that ended without output.
var (
	noOutput = output.NewLog(nil, 0)
	hasEnded = func() chan struct{} {
		closed := make(chan struct{})
		close(closed)
		return closed
	}()
)

// contentInMemory is how long a finished command's text may be to stay in memory.
const contentInMemory = 512

// archive keeps of an ended command only what status and logs need.
func (c *Command) archive() {
	c.log.Archive()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process, c.pumps, c.stops, c.done = nil, nil, nil, hasEnded
	if _, end := c.log.Range(); end == 0 {
		c.log = noOutput
	}
	if len(c.content) > contentInMemory {
		c.archived = output.NewLog(c.store, int64(len(c.content)))
		c.archived.Append(output.Stdout, []byte(c.content))
		c.archived.Archive()
		c.content = ""
	}
}

// forget gives back everything an ended command still holds.
func (c *Command) forget() {
	c.output().Drop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.archived != nil {
		c.archived.Drop()
	}
}
