// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"errors"
	"runtime"
	"runtime/debug"

	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/guest"
	"casulo.dev/dataplane/internal/process"
)

// collectInMachine lets a machine that was just made answer before it first collects garbage.
const collectInMachine = 200

// virtual is a virtual machine with the parts of the daemon that are there before its sandbox is known.
type virtual struct {
	machine    *guest.Machine
	supervisor *process.Supervisor
}

// runMachine is the whole life of process 1 of a virtual machine. It does not return.
func runMachine() {
	setUpLog()
	harden()
	debug.SetGCPercent(collectInMachine)
	machine, err := guest.Start()
	if err != nil {
		fail(nil, err)
	}
	v := &virtual{machine: machine}
	machine.Rehearsal = v.rehearse
	channel, document, err := machine.Await()
	if err != nil {
		fail(channel, err)
	}
	run(channel, document, v.supervisor, func(d *daemon) { go machine.Serve(d.become) })
	guest.PowerOff()
}

// become makes this the daemon of another sandbox, after its machine was restored as that.
func (d *daemon) become(sandboxID, token string, env map[string]string) {
	d.env.Rename(sandboxID, env)
	d.services.router.SetToken(token)
}

// rehearse lives as the sandbox of a document does, until end is called: its entrypoint ends by itself, and
// the host uses the daemon as a caller will.
func (v *virtual) rehearse(document *boot.Document) (end func() error, err error) {
	if v.supervisor == nil {
		if v.supervisor, err = process.NewSupervisor(process.Options{Cgroup: v.machine.Commands()}); err != nil {
			return nil, err
		}
	}
	d := &daemon{document: document, supervisor: v.supervisor, env: newEnvironment(document)}
	listeners, listen, err := d.start(&boot.Channel{})
	if err != nil {
		return nil, err
	}
	d.services = newServices(d, listen)
	d.serve(listeners)
	return d.leave, nil
}

// leave gives up the addresses, for the daemon that comes next, and collects what it would have to.
func (d *daemon) leave() error {
	defer runtime.GC()
	d.entry.Wait()
	err := d.server.Close()
	if d.probes != nil {
		err = errors.Join(err, d.probes.Close())
	}
	return err
}
