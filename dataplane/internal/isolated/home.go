// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/thread"
)

// Home is the directory in which sessions keep what they write, and the mount namespace in which it can
// be seen. Nothing else in the sandbox sees it, nor where on the host it is.
type Home struct {
	path      string
	namespace *os.File
}

// homePoint is where the home is in its namespace: a directory that nobody can remove or rename, which
// would take the mount on it along.
const homePoint = "/proc/fs"

// newHome takes the mount at path out of the sandbox's view.
func newHome(path string) (*Home, error) {
	h := &Home{path: homePoint}
	var err error
	thread.Throwaway(func() {
		if err = privateMounts(unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = mount(path, homePoint, "", unix.MS_MOVE, ""); err != nil {
			return
		}
		h.namespace, err = os.Open("/proc/thread-self/ns/mnt")
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return nil, errors.Join(fmt.Errorf("hide %s: %w", path, err), h.namespace.Close())
	}
	return h, nil
}

// enter takes the calling thread to where the home is visible; for good.
func (h *Home) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(h.namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the home of sessions: %w", err)
	}
	return nil
}

// visit runs work where the home is visible.
func (h *Home) visit(work func() error) (err error) {
	thread.Throwaway(func() {
		if err = h.enter(); err == nil {
			err = work()
		}
	})
	return err
}
