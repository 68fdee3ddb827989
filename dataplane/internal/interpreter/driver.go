// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/stream"
)

// driver is an engine that is one long-lived process: the image's own interpreter with a driver of
// ours on top, which executes cells as it is told through frames.
type driver struct {
	*child
	cwd string
	// submit hands a cell over; ask tells the process to stop it.
	submit func(c *cell) error
	ask    func()
	// early is what it printed before its first cell: of interest only when it never comes to one.
	early transcript
	begun bool
	// ready tells that it said it can be spoken to. An interrupt before that would end it.
	ready bool
}

func newDriver(l launch, spec childSpec) (*driver, error) {
	d := &driver{cwd: l.dir}
	spec.env, spec.dir, spec.user = l.variables.List(), l.dir, l.identity.Credential
	spec.sink = d.early.add
	started, err := startChild(l.service.supervisor, l.id, spec)
	if err != nil {
		return nil, err
	}
	d.child = started
	d.submit = func(c *cell) error {
		return d.order(appendFrame(nil, append([]string{"run", c.code}, c.options...)...))
	}
	d.ask = func() { d.process.SignalGroup(syscall.SIGINT) }
	return d, nil
}

func (d *driver) execute(c *cell) *stream.Failure {
	d.direct(c.events.print)
	defer d.direct(nil)
	if !d.awaitReady(c) {
		return d.died(c)
	}
	if c.stopped != "" {
		return c.unbegun()
	}
	if err := d.submit(c); err != nil {
		d.process.Tree.Kill()
	}
	if c.follow(d.child, d.ask) {
		d.begun = true
		return c.survived()
	}
	return d.died(c)
}

// awaitReady waits until the driver can be spoken to. A cell that has to stop meanwhile is held back; a
// driver that then takes too long is ended, and so is not there (false).
func (d *driver) awaitReady(c *cell) bool {
	var limit <-chan time.Time
	for !d.ready {
		select {
		case f, open := <-d.frames:
			if !open {
				d.process.Tree.Kill()
				<-d.process.Done()
				return false
			}
			d.ready = f.kind() == "ready"
		case <-d.process.Done():
			return false
		case <-c.expired:
			c.stop(reasonTimeout)
		case reason := <-c.stops:
			if c.stopped == "" {
				c.stopped = reason
				limit = time.After(asksAtMost * askAgain)
			}
		case <-limit:
			d.process.Tree.Kill()
		}
	}
	return true
}

func (d *driver) died(c *cell) *stream.Failure {
	if !d.begun {
		c.events.print(output.Stderr, []byte(d.early.String()))
	}
	return c.died(d.process.Exit())
}

func (d *driver) directory() string {
	if dir, err := os.Readlink("/proc/" + strconv.Itoa(d.process.PID) + "/cwd"); err == nil {
		d.cwd = dir
	}
	return d.cwd
}

func (d *driver) close() { d.end() }
