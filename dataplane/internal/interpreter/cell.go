// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"time"

	"casulo.dev/dataplane/internal/stream"
)

// How a cell that has to stop is stopped: it is asked, asked again, and then killed.
const (
	askAgain   = time.Second
	asksAtMost = 4
)

// lastFrames is how long the frames of an ended process may take to arrive.
const lastFrames = 100 * time.Millisecond

// cell is one run of code in a context.
type cell struct {
	code    string
	options []string
	count   int
	timeout time.Duration
	expired <-chan time.Time
	stops   chan string
	// done is closed when its context is free again.
	done chan struct{}

	// events wait here for whoever follows the cell.
	events *queue

	// What follows belongs to the goroutine that runs the cell.
	stopped string // why it had to stop, if it had to
	failure *stream.Failure
	saved   []frame
}

// stop asks a running cell to end; a second reason changes nothing.
func (c *cell) stop(reason string) {
	select {
	case c.stops <- reason:
	default:
		// It is being stopped already.
	}
}

// follow serves a child until it says that it is done (true) or its process ended (false). Ask tells
// it to stop.
func (c *cell) follow(ch *child, ask func()) bool {
	ch.process.BeginRun()
	defer ch.process.EndRun(0)
	frames := ch.frames
	var insist <-chan time.Time
	asked := 0
	for {
		select {
		case f, open := <-frames:
			if !open {
				// The process is about to be reaped, or it closed what it must not close.
				frames = nil
				insist = time.After(askAgain)
				asked = asksAtMost
			} else if c.take(ch, f) {
				ch.drain()
				return true
			}
		case <-ch.process.Done():
			return c.rest(ch, frames)
		case <-c.expired:
			c.stop(reasonTimeout)
		case reason := <-c.stops:
			if c.stopped == "" {
				c.stopped = reason
				insist = time.After(0)
			}
		case <-insist:
			if asked++; asked > asksAtMost {
				ch.process.Tree.Kill()
			} else {
				ask()
				insist = time.After(askAgain)
			}
		}
	}
}

// rest takes what an ended process still had to say. Its end may have overtaken its last frame.
func (c *cell) rest(ch *child, frames <-chan frame) bool {
	done := false
	for patience := time.After(lastFrames); frames != nil && !done; {
		select {
		case f, open := <-frames:
			if !open {
				frames = nil
			} else {
				done = c.take(ch, f)
			}
		case <-patience:
			frames = nil
		}
	}
	ch.drain()
	return done && ch.alive()
}

// take acts on one frame; true means that the cell is done. Whatever has a place in the output is
// answered, so that the driver prints on only after everything before it was read.
func (c *cell) take(ch *child, f frame) bool {
	switch f.kind() {
	case "done":
		return true
	case "error":
		c.failure = &stream.Failure{Name: f.field(1), Value: f.field(2)}
		for i := 3; i < len(f); i++ {
			c.failure.Traceback = append(c.failure.Traceback, f.field(i))
		}
		return false
	case "exit":
		c.failure = exitFailure(f.field(1))
		return true
	case "save":
		c.saved = append(c.saved, f)
		return false
	case "result", "display":
		ch.drain()
		c.show(f)
	case "sync":
		ch.drain()
	default:
		return false
	}
	if err := ch.order(appendFrame(nil, "ack")); err != nil {
		ch.process.Tree.Kill()
	}
	return false
}

func (c *cell) show(f frame) {
	count, size := 0, 0
	if f.kind() == "result" {
		count = c.count
	}
	var forms []stream.Representation
	for i := 1; i+1 < len(f); i += 2 {
		forms = append(forms, stream.Representation{MIME: f.field(i), Data: f[i+1]})
		size += len(f[i+1])
	}
	if len(forms) > 0 {
		c.events.add(func(out *stream.Cell) { out.Result(count, forms) }, size)
	}
}
