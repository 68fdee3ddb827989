// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/thread"
)

// reserved are the capabilities that only the daemon holds: to make and join namespaces, and to
// bring up the loopback device of a session without the sandbox's network.
var reserved = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}

// Bits of prctl(PR_SET_SECUREBITS): root gets nothing for being root, and nobody can undo that.
const secureNoRoot, secureNoRootLocked = 1 << 0, 1 << 1

const lastCapability = 63

// userNamespaceLimit says how many user namespaces may be made below the sandbox's own.
const userNamespaceLimit = "/proc/sys/user/max_user_namespaces"

// Confine is called before the first process of the user is started, in a sandbox that may have
// isolated sessions. From then on every process of the sandbox has the capabilities that it would
// have in any other sandbox, and no way to more: the user namespace is closed to further ones, being
// root gives nothing by itself, and what the daemon keeps for itself is not passed on. An error means
// that user code must not run. Without path there are no isolated sessions, and nothing to do.
func Confine(path string) (*Home, error) {
	if path == "" {
		return nil, nil
	}
	own, err := capabilities()
	if err != nil {
		return nil, err
	}
	if !own.has(unix.CAP_SYS_ADMIN) {
		return nil, nil // Nothing to keep from user code; support says why there are no sessions.
	}
	if err := closeUserNamespaces(); err != nil {
		return nil, fmt.Errorf("close the sandbox to further user namespaces: %w", err)
	}
	if err := own.share(); err != nil {
		return nil, fmt.Errorf("keep capabilities from user code: %w", err)
	}
	return newHome(path)
}

// closeUserNamespaces writes the limit through a process file system of its own, since the sandbox's
// is read-only there. The mount ends with the thread.
func closeUserNamespaces() (err error) {
	thread.Throwaway(func() {
		if err = privateMounts(unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return
		}
		if err = os.WriteFile(userNamespaceLimit, []byte("0"), 0); err != nil {
			return
		}
		if probe := unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_FS); probe == nil {
			err = errors.New("the limit has no effect")
		}
	})
	return err
}

// held is what a thread may do.
type held struct{ permitted uint64 }

func capabilities() (held, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return held{}, fmt.Errorf("capget: %w", err)
	}
	return held{uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32}, nil
}

func (h held) has(capability uintptr) bool { return h.permitted>>capability&1 == 1 }

func (h held) without(capabilities ...uintptr) held {
	for _, capability := range capabilities {
		h.permitted &^= 1 << capability
	}
	return h
}

// share makes the capabilities that all processes have ambient, which is how they pass an exec once
// root is nothing special; it drops the one that is done with, and keeps the reserved ones here.
func (h held) share() error {
	kept := h.without(unix.CAP_SYS_RESOURCE)
	common := kept.without(reserved...)
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureNoRoot|secureNoRootLocked, 0); err != nil {
		return fmt.Errorf("set secure bits: %w", err)
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_RESOURCE, 0); err != nil {
		return fmt.Errorf("drop from the bounding set: %w", err)
	}
	if err := setOnAllThreads(kept, common); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	for capability := uintptr(0); capability <= lastCapability; capability++ {
		if !common.has(capability) {
			continue
		}
		if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, capability); err != nil {
			return fmt.Errorf("raise ambient capability %d: %w", capability, err)
		}
	}
	return nil
}

func setOnAllThreads(kept, inheritable held) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for half := range data {
		shift := 32 * half
		data[half].Permitted = uint32(kept.permitted >> shift)
		data[half].Effective = data[half].Permitted
		data[half].Inheritable = uint32(inheritable.permitted >> shift)
	}
	// The kernel reads both during the call only; they stay alive until it is over.
	err := onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	return err
}

// onAllThreads changes this process as a whole: capabilities belong to threads.
func onAllThreads(call, a, b, c uintptr) error {
	_, _, number := syscall.AllThreadsSyscall6(call, a, b, c, 0, 0, 0)
	if number != 0 {
		return number
	}
	return nil
}
