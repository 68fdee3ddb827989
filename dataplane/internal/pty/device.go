// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// size is how many characters a terminal shows.
type size struct {
	cols, rows uint16
}

// openTerminal makes a pseudo terminal of a size: our end, and the descriptor for the child, which the
// caller closes. The child's end needs no path, so a sandbox without /dev/pts entries works too.
func openTerminal(s size) (master *os.File, slave int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, -1, errors.Join(fmt.Errorf("unlock the terminal: %w", err), master.Close())
	}
	if slave, err = peer(fd); err != nil {
		return nil, -1, errors.Join(fmt.Errorf("open the terminal's other end: %w", err), master.Close())
	}
	if err := resize(master, s); err != nil {
		return nil, -1, errors.Join(err, unix.Close(slave), master.Close())
	}
	return master, slave, nil
}

// peer opens the child's end of a terminal.
func peer(master int) (int, error) {
	flags := uintptr(unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC)
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno == unix.ENOTTY {
		return peerByName(master)
	}
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// peerByName is for kernels without that call, such as gVisor's.
func peerByName(master int) (int, error) {
	number, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	return unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}

// resize also tells the foreground program, by SIGWINCH from the kernel.
func resize(master *os.File, s size) error {
	return control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.rows, Col: s.cols})
	})
}

// foreground is the process group that has the terminal now.
func foreground(master *os.File) (group int, err error) {
	err = control(master, func(fd int) error {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group, err
}

// control runs an operation on the descriptor without taking it out of the poller.
func control(file *os.File, operate func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = operate(int(fd)) }); err != nil {
		return err
	}
	return failure
}
