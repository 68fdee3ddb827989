// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Command execd is the execution daemon of a sandbox: process 1, the starter of the user's
// entrypoint, and the HTTP server through which commands, files and terminals are reached. This
// package only reads the boot document and wires the parts together.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/guest"
	"casulo.dev/dataplane/internal/isolated"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/version"
)

// Memory tuning: a small heap while idle, and a soft ceiling under load.
const (
	collectAtPercent = 50
	softMemoryLimit  = 48 << 20
)

func main() {
	if isolated.IsHelper(os.Args) {
		os.Exit(isolated.RunHelper(os.Args))
	}
	if guest.IsInit(os.Args) {
		runMachine()
	}
	bootFD := flag.Int("boot-fd", -1, "descriptor of the boot channel, a SOCK_SEQPACKET socket")
	stdio := flag.Bool("boot-stdio", false, "boot through standard input and output, and log to standard error")
	document := flag.String("document", "", "file with the boot document, when there is no boot channel")
	probe := flag.Bool("probe", false, "say which calls that programs rely on this kernel refuses, and exit")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println(version.Version)
		return
	}
	if *probe {
		probeKernel()
		return
	}
	setUpLog()
	if err := closeInheritedOnExec(); err != nil {
		log.Printf("event=descriptors_may_leak error=%q", err)
	}
	var parked *process.Supervisor
	channel, parsed, err := receive(*bootFD, *stdio, *document, func(channel *boot.Channel) (err error) {
		harden()
		parked, err = newSupervisor(channel)
		return err
	})
	if err != nil {
		fail(channel, err)
	}
	if parked == nil {
		harden()
	}
	os.Exit(run(channel, parsed, parked, nil))
}

// probeKernel is how the server finds out what a kernel of another make lacks.
func probeKernel() {
	var status unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, "/", unix.AT_NO_AUTOMOUNT, unix.STATX_MODE, &status) == unix.EINVAL {
		fmt.Println("refused: AT_NO_AUTOMOUNT")
	}
}

func setUpLog() { log.SetFlags(log.LstdFlags | log.Lmicroseconds | log.LUTC) }

func receive(fd int, stdio bool, name string, park func(*boot.Channel) error) (*boot.Channel, *boot.Document, error) {
	if fd >= 0 {
		return boot.Receive(fd, park)
	}
	if stdio {
		return receiveStdio()
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return &boot.Channel{}, nil, fmt.Errorf("read the boot document: %w", err)
	}
	parsed, err := boot.Parse(content)
	return &boot.Channel{}, parsed, err
}

// receiveStdio also sends what the entrypoint prints to standard error, where whoever runs us keeps it.
func receiveStdio() (*boot.Channel, *boot.Document, error) {
	in, out, err := boot.TakeStdio()
	if err != nil {
		return nil, nil, err
	}
	channel, document, err := boot.ReceiveStream(in, out)
	channel.Log = os.Stderr
	return channel, document, errors.Join(err, in.Close())
}

// closeInheritedOnExec keeps whatever the starter left open from reaching user processes.
func closeInheritedOnExec() error {
	const first = 3
	return unix.CloseRange(first, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}

// harden keeps the sandbox's processes from reading our memory and from ending us by signals.
func harden() {
	debug.SetGCPercent(collectAtPercent)
	debug.SetMemoryLimit(softMemoryLimit)
	unix.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Printf("event=still_dumpable error=%q", err)
	}
	swallowSignals()
}

// kept are the signals that the runtime or the supervisor needs for itself.
var kept = map[syscall.Signal]bool{
	unix.SIGKILL: true, unix.SIGSTOP: true, unix.SIGCHLD: true, unix.SIGURG: true, unix.SIGPROF: true,
}

// swallowSignals takes every signal that somebody might send and does nothing: stopping a sandbox
// is an API call. Handling rather than ignoring leaves the children's defaults alone.
func swallowSignals() {
	var taken []os.Signal
	for number := syscall.Signal(1); number <= unix.SIGSYS; number++ {
		if !kept[number] {
			taken = append(taken, number)
		}
	}
	signal.Notify(make(chan os.Signal, 1), taken...)
}
