// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"os"
	"strconv"
	"syscall"

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
}

func newDriver(l launch, spec childSpec) (*driver, error) {
	spec.env, spec.dir, spec.user = l.variables.List(), l.dir, l.identity.Credential
	started, err := startChild(l.service.supervisor, l.id, spec)
	if err != nil {
		return nil, err
	}
	d := &driver{child: started, cwd: l.dir}
	d.submit = func(c *cell) error {
		return d.order(appendFrame(nil, append([]string{"run", c.code}, c.options...)...))
	}
	d.ask = func() { d.process.SignalGroup(syscall.SIGINT) }
	return d, nil
}

func (d *driver) execute(c *cell) *stream.Failure {
	d.direct(c.events.print)
	defer d.direct(nil)
	if err := d.submit(c); err != nil {
		d.process.Tree.Kill()
	}
	if c.follow(d.child, d.ask) {
		return c.survived()
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
