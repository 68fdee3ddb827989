// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package own marks the packets that this process sends by itself, where it shares a network
// namespace with the sandbox that it watches. Setting a mark takes rights over the namespace, which
// the sandbox must not have.
package own

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control is what a net.Dialer does to a socket before it connects.
type Control = func(network, address string, raw syscall.RawConn) error

// Marking gives sockets a mark.
func Marking(mark uint32) Control {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
		})
		return errors.Join(err, failed)
	}
}
