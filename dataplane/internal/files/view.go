// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"fmt"
	"net/http"
	"unsafe"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/thread"
)

// View says as whom, and in which world, an operation runs. The zero View is the daemon itself.
type View struct {
	// Enter changes the calling OS thread only (credentials, mount namespace). The thread is thrown away afterwards,
	// so nothing has to be undone and a half-made change can never leak into another request.
	Enter func() error
	// Home replaces $HOME when a path starts with "~"; empty means the sandbox's HOME.
	Home string
	// CountReplacements makes /files/replace always answer with the counts.
	CountReplacements bool
}

// run calls work inside the view. It returns only after work did, and passes a panic on to the caller.
func (v View) run(work func()) error {
	if v.Enter == nil {
		work()
		return nil
	}
	var err error
	thread.Throwaway(func() {
		if err = v.Enter(); err == nil {
			work()
		}
	})
	return err
}

// Identity is a set of credentials for file operations.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Enter makes the calling thread act with the identity, and fails closed: when the kernel did not take over every
// part, the thread must not be used. Only the file-system ids change; the real ones stay, so that processes of that
// user cannot signal or trace the daemon's thread.
func (id Identity) Enter() error {
	if err := setGroups(id.Groups); err != nil {
		if id.isOurs() {
			return nil // an unprivileged daemon can be nobody else, and is this one already
		}
		return cannotBecome(id, err)
	}
	// Both calls report the previous value and no error; asking again is the only way to know.
	_, _ = unix.SetfsgidRetGid(int(id.GID))
	_, _ = unix.SetfsuidRetUid(int(id.UID))
	gid, gidErr := unix.SetfsgidRetGid(-1)
	uid, uidErr := unix.SetfsuidRetUid(-1)
	if gidErr != nil || uidErr != nil || uint32(gid) != id.GID || uint32(uid) != id.UID {
		return cannotBecome(id, unix.EPERM)
	}
	if id.UID == 0 {
		return nil
	}
	if err := dropEffectiveCapabilities(); err != nil {
		return cannotBecome(id, err)
	}
	return nil
}

func (id Identity) isOurs() bool {
	return uint32(unix.Geteuid()) == id.UID && uint32(unix.Getegid()) == id.GID
}

func cannotBecome(id Identity, err error) error {
	return fail(http.StatusNotImplemented, api.CodeNotSupported,
		"file operations as uid %d, gid %d are not possible here: %v", id.UID, id.GID, err)
}

// setGroups is the raw call, for this thread only: the one of package syscall would change every thread of the process.
func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		// The kernel reads the array during this call only, and the parameter keeps it alive that long.
		first = unsafe.Pointer(&groups[0])
	}
	_, _, number := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
	if number != 0 {
		return number
	}
	return nil
}

// dropEffectiveCapabilities leaves the thread without privilege. The kernel already drops the file-system ones when
// the file-system uid leaves 0, unless a security bit forbids it; the others could open /proc of other users.
func dropEffectiveCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	data[0].Effective, data[1].Effective = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
