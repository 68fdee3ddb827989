// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/files"
	"casulo.dev/dataplane/internal/plain"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/thread"
)

// world is the set of namespaces of one session. It lives as long as its first process, which does
// nothing but wait: everything else in the session may end, and its orphans are collected.
type world struct {
	init *process.Process
	// hold is the writing end of what the first process reads: it ends when the daemon does.
	hold       *os.File
	namespaces []*os.File
	layers     []*layer
}

// waiting is the program of a session's first process. A shell collects orphans while it waits.
const waiting = `\builtin trap '' HUP INT QUIT TERM; while \builtin read -r _; do :; done`

// kinds of namespaces that whoever joins a session enters; the network is left out where it is shared.
var joinedKinds = []string{"mnt", "ipc", "pid", "net"}

// createWorld makes namespaces with the view that a plan describes.
func createWorld(supervisor *process.Supervisor, p *plan) (w *world, err error) {
	orders, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	null, err := plain.Null()
	if err != nil {
		return nil, errors.Join(err, hold.Close())
	}
	defer null.Close()
	w = &world{hold: hold}
	w.init, err = supervisor.Start(process.Spec{
		ID: p.id + "-init", Path: p.shell, Argv: []string{"session", "--noprofile", "--norc", "-c", waiting},
		Dir: "/", Files: []uintptr{orders.Fd(), null.Fd(), null.Fd()},
		Inside: func() (err error) { w.layers, err = p.build(); return err },
	})
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	if err = w.open(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// open keeps the namespaces at hand, without having to look the first process up again.
func (w *world) open() error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	for _, kind := range joinedKinds {
		name := filepath.Join("/proc", strconv.Itoa(w.init.PID), "ns", kind)
		if target, err := os.Readlink(name); kind == "net" && err == nil && target == own {
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("open the session's %s namespace: %w", kind, err)
		}
		w.namespaces = append(w.namespaces, file)
	}
	return nil
}

// join takes the calling thread into the session; for good, so it has to be a throwaway thread. The
// process namespace is that of the thread's children.
func (w *world) join() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for _, namespace := range w.namespaces {
		if err := unix.Setns(int(namespace.Fd()), 0); err != nil {
			return fmt.Errorf("enter the session: %w", err)
		}
	}
	return nil
}

// look takes the calling thread to what the session sees of files.
func (w *world) look(identity *files.Identity) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(w.namespaces[0].Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the session: %w", err)
	}
	if identity == nil {
		return nil
	}
	return identity.Enter()
}

// mountProcesses shows the session its own processes only. Such a file system shows the processes of
// whoever mounts it, so this takes a process inside: the daemon's own program in another role. It has a
// capability that user code must not get, so it is named by what cannot be put in its place.
func (w *world) mountProcesses(supervisor *process.Supervisor, id string) error {
	hidden, err := mountsBelow("/proc")
	if err != nil {
		return err
	}
	told, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer told.Close()
	helper, err := supervisor.Start(process.Spec{
		ID: id + "-proc", Path: "/proc/self/exe", Argv: append([]string{helperName}, hidden...), Dir: "/",
		Files: []uintptr{^uintptr(0), ^uintptr(0), tell.Fd()}, Inside: w.join, Ambient: []uintptr{unix.CAP_SYS_ADMIN},
	})
	if err := errors.Join(err, tell.Close()); err != nil {
		return err
	}
	<-helper.Done()
	helper.Release()
	if helper.Exit().Code == 0 {
		return nil
	}
	message := make([]byte, 4096)
	n, _ := told.Read(message) // What it said is all there is to say, even if it is nothing.
	return fmt.Errorf("mount the session's /proc: %s", message[:n])
}

// alive reports whether the first process runs.
func (w *world) alive() bool {
	select {
	case <-w.init.Done():
		return false
	default:
		return true
	}
}

// close kills everything inside and gives the mounts back. Idempotent.
func (w *world) close() error {
	var failures []error
	if w.init != nil {
		w.init.SignalOther(w.init.PID, syscall.SIGKILL)
		<-w.init.Done()
		w.init.Release()
		w.init = nil
	}
	for _, file := range append(w.namespaces, w.hold) {
		if file != nil {
			failures = append(failures, file.Close())
		}
	}
	for _, layer := range w.layers {
		failures = append(failures, layer.close())
	}
	w.namespaces, w.hold, w.layers = nil, nil, nil
	return errors.Join(failures...)
}

// inside runs work on a thread that sees what the session sees.
func (w *world) inside(work func() error) (err error) {
	thread.Throwaway(func() {
		if err = w.look(nil); err == nil {
			err = work()
		}
	})
	return err
}
