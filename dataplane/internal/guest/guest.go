// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package guest owns what process 1 of a virtual machine has to do besides being the daemon: bring up
// devices and file systems from the initial memory disk, take its identity from the host over a serial
// port, and take another one whenever the machine was restored from a frozen copy.
//
// Nothing of a particular sandbox is known before the host's message arrives. So a machine that waits
// for it can be frozen once and restored for any number of sandboxes.
package guest

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/version"
)

// initName is what the kernel calls the first program of the initial memory disk.
const initName = "/init"

// IsInit tells whether this process is the first one of a virtual machine.
func IsInit(args []string) bool {
	return os.Getpid() == 1 && len(args) > 0 && args[0] == initName
}

// Machine is the virtual machine around this process.
type Machine struct {
	link   *link
	groups groups
	record *os.File
	names  names
	// identity is the last one that the machine took.
	identity identity
	// Rehearsal does what a start is made of besides what this package does, and says how to end it.
	Rehearsal func(*boot.Document) (end func() error, err error)
	// ending ends the rehearsal that goes on; nil when there is none.
	ending func() error
}

// Start brings the machine up as far as every sandbox needs it.
func Start() (*Machine, error) {
	if err := mountBasics(); err != nil {
		return nil, err
	}
	if err := loadModules(); err != nil {
		return nil, err
	}
	link, err := openLink()
	if err != nil {
		return nil, err
	}
	m := &Machine{link: link}
	if err := m.settle(); err != nil {
		m.link.failed(err)
		return nil, err
	}
	return m, nil
}

func (m *Machine) settle() (err error) {
	if err = enterRoot(); err != nil {
		return err
	}
	if err = mountRest(); err != nil {
		return err
	}
	noIPv6()
	if err = awaken(device, "lo"); err != nil {
		return err
	}
	if m.names, err = openNames(); err != nil {
		return err
	}
	if m.groups, err = makeGroups(); err != nil {
		return err
	}
	m.record, err = openRecord()
	return err
}

// Await says that the machine can be frozen, warms it up as it is told, and returns when the host has
// decided which sandbox this is.
func (m *Machine) Await() (*boot.Channel, *boot.Document, error) {
	if err := m.link.send(reply{Event: "waiting", Version: version.Version}); err != nil {
		return nil, nil, err
	}
	for {
		order, err := m.link.receive()
		if err != nil {
			return nil, nil, err
		}
		if order.Do != "boot" {
			m.obey(order)
			continue
		}
		channel, err := m.begin(order)
		if err != nil {
			return channel, nil, err
		}
		document, err := boot.Parse(order.Document)
		return channel, document, err
	}
}

func (m *Machine) begin(order *order) (*boot.Channel, error) {
	output, err := openOutput()
	channel := boot.NewChannel(m.link.sendRaw)
	if err != nil {
		return channel, err
	}
	channel.Events, channel.Log, channel.Cgroup = m.record, output, m.groups.run
	if err := m.groups.limit(order.Limits); err != nil {
		return channel, err
	}
	if err := m.become(order.Identity); err != nil {
		return channel, err
	}
	return channel, resizeShared(order.Limits.SHMBytes)
}

// obey does what may be asked of a machine that has no sandbox yet.
func (m *Machine) obey(order *order) {
	answer := reply{Event: "done", ID: order.ID}
	var err error
	switch order.Do {
	case "run":
		answer.Code, answer.Output, err = runCommand(order)
	case "sync":
		settle()
	case "rehearse":
		err = m.rehearse(order)
	case "rehearsed":
		err = m.endRehearsal()
	default:
		err = fmt.Errorf("the machine cannot %q now", order.Do)
	}
	m.answer(answer, err)
}

// rehearse does what a start will do, without its effects: in emulation code is fast only once it ran, and
// a machine that waits has the time.
func (m *Machine) rehearse(order *order) error {
	if err := m.become(order.Identity); err != nil {
		return err
	}
	knock(order.Identity.Gateway)
	document, err := boot.Parse(order.Document)
	if err != nil {
		return err
	}
	m.ending, err = m.Rehearsal(document)
	return err
}

func (m *Machine) endRehearsal() error {
	if m.ending == nil {
		return errors.New("there is no rehearsal")
	}
	end := m.ending
	m.ending = nil
	return end()
}

// settle leaves nothing to be written or collected by every machine that is made from this one.
func settle() {
	debug.FreeOSMemory()
	unix.Sync()
}

// Commands is the directory of control groups for what the sandbox starts.
func (m *Machine) Commands() *os.File { return m.groups.run }

func (m *Machine) answer(answer reply, err error) {
	if err != nil {
		answer.Error = err.Error()
	}
	if err := m.link.send(answer); err != nil {
		log.Printf("event=answer_not_sent error=%q", err)
	}
}

// Serve does what the host asks of a running sandbox, for as long as it runs. Renew is told of a new
// identity after the machine itself has it.
func (m *Machine) Serve(renew func(sandboxID, token string, env map[string]string)) {
	for {
		order, err := m.link.receive()
		if err != nil {
			log.Printf("event=link_lost error=%q", err)
			return
		}
		answer := reply{Event: "done", ID: order.ID}
		switch order.Do {
		case "renew":
			err = m.become(order.Identity)
			renew(order.Identity.SandboxID, order.Identity.Token, order.Env)
		case "clock":
			err = setClock(order.UnixNanos)
		case "sync":
			unix.Sync()
		default:
			err = fmt.Errorf("the sandbox cannot %q now", order.Do)
		}
		m.answer(answer, err)
	}
}

// PowerOff ends the machine; there is nothing after it.
func PowerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		log.Printf("event=still_on error=%q", err)
	}
	select {}
}
