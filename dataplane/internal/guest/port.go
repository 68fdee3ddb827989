// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// vsockWord on the kernel's command line says that the host has no serial ports for the machine, and
// connects to its vsock instead.
const vsockWord = "casulo.line=vsock"

// The vsock's ports that stand for serial ports.
var vsockPorts = map[string]uint32{linkPort: 1024, outputPort: 1025}

// openPort opens the line of this name, of whichever kind the machine has.
func openPort(name string) (io.ReadWriter, error) {
	if !overVsock() {
		return openSerial(name)
	}
	listener, err := listenVsock(vsockPorts[name])
	if err != nil {
		return nil, fmt.Errorf("listen for the line %s: %w", name, err)
	}
	return newCallable(func() (io.ReadWriteCloser, error) { return acceptVsock(listener) }), nil
}

func overVsock() bool {
	line, err := os.ReadFile("/proc/cmdline")
	return err == nil && slices.Contains(strings.Fields(string(line)), vsockWord)
}

func listenVsock(port uint32) (int, error) {
	socket, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(socket, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err == nil {
		err = unix.Listen(socket, 4)
	}
	if err != nil {
		unix.Close(socket)
		return -1, err
	}
	return socket, nil
}

func acceptVsock(listener int) (io.ReadWriteCloser, error) {
	for {
		socket, peer, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if from, ok := peer.(*unix.SockaddrVM); !ok || from.CID != unix.VMADDR_CID_HOST {
			unix.Close(socket) // a program of this machine, which is not to give orders
			continue
		}
		return os.NewFile(uintptr(socket), "vsock"), nil
	}
}

// callable is a line that the host opens, and opens again after the machine was saved or restored, which
// ends every connection. The newest one counts.
type callable struct {
	mu      sync.Mutex
	changed *sync.Cond
	current io.ReadWriteCloser
}

func newCallable(accept func() (io.ReadWriteCloser, error)) *callable {
	c := &callable{}
	c.changed = sync.NewCond(&c.mu)
	go c.answer(accept)
	return c
}

func (c *callable) answer(accept func() (io.ReadWriteCloser, error)) {
	for {
		fresh, err := accept()
		if err != nil {
			log.Printf("event=line_closed error=%q", err)
			return
		}
		c.replace(nil, fresh)
	}
}

// replace makes `fresh` the connection; with an `old` only if that still is it.
func (c *callable) replace(old, fresh io.ReadWriteCloser) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil && old != c.current {
		return
	}
	if c.current != nil {
		c.current.Close() // nothing more is expected of it
	}
	c.current = fresh
	c.changed.Broadcast()
}

func (c *callable) connection() io.ReadWriteCloser {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.current == nil {
		c.changed.Wait()
	}
	return c.current
}

// Read waits for a connection. The end of one is an error once; the next read waits for another.
func (c *callable) Read(p []byte) (int, error) {
	connection := c.connection()
	n, err := connection.Read(p)
	if err != nil {
		c.replace(connection, nil)
	}
	return n, err
}

// Write waits for a connection. What one of them did not take is not sent over another.
func (c *callable) Write(p []byte) (int, error) {
	connection := c.connection()
	n, err := connection.Write(p)
	if err != nil {
		c.replace(connection, nil)
	}
	return n, err
}
