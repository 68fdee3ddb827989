// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// awaitStep is how often the channel is looked at: nothing that blocks may be under way when a
// checkpoint is taken, and afterwards another socket is behind the same descriptor.
const awaitStep = 2 * time.Millisecond

// ErrCalledOff says that there will be no checkpoint, and ErrHungUp that a later starter went away before
// it said what to continue as: the checkpoint that it came from is the truth then, and not this process.
var (
	ErrCalledOff = errors.New("the checkpoint was called off")
	ErrHungUp    = errors.New("the starter hung up")
)

// Await waits for a later starter on the descriptor of Receive, whose own starter may be gone by now.
func Await(fd int, calledOff <-chan os.Signal) (*Channel, *Document, error) {
	for open := false; ; time.Sleep(awaitStep) {
		var waiting [1]byte
		n, _, err := unix.Recvfrom(fd, waiting[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case n > 0 && err == nil:
			return receive(fd, unix.MSG_DONTWAIT)
		case err == unix.EAGAIN:
			open = true
		case open:
			return nil, nil, ErrHungUp
		}
		select {
		case <-calledOff:
			return nil, nil, ErrCalledOff
		default:
		}
	}
}

// ForeignSockets counts the TCP sockets of the sandbox that are none of those that listen at the addresses,
// or are connected to one.
func ForeignSockets(listen []string) (count int) {
	own := map[uint64]bool{}
	for _, address := range listen {
		if port, err := strconv.ParseUint(address[strings.LastIndexByte(address, ':')+1:], 10, 16); err == nil {
			own[port] = true
		}
	}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(content) {
			if port, open := openPort(line); open && !own[port] {
				count++
			}
		}
	}
	return count
}

// openPort reads the local port of a row, and whether its state is not one of closing.
func openPort(line []byte) (port uint64, open bool) {
	const local, state = 1, 3
	fields := bytes.Fields(line)
	if len(fields) <= state {
		return 0, false
	}
	_, text, found := strings.Cut(string(fields[local]), ":")
	port, err := strconv.ParseUint(text, 16, 16)
	switch string(fields[state]) {
	case "04", "05", "06", "07", "09", "0B":
		return port, false
	}
	return port, found && err == nil
}
