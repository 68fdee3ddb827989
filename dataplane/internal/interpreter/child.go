// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"bufio"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/plain"
	"casulo.dev/dataplane/internal/process"
)

// descriptors say at which numbers a child finds its channels.
type descriptors struct {
	orders, frames, stdout, stderr int
}

// usual leaves the standard descriptors to the user's code.
var usual = descriptors{orders: 3, frames: 4, stdout: 1, stderr: 2}

// childSpec says what to start and how it is connected.
type childSpec struct {
	path string
	argv []string
	env  []string
	dir  string
	user *syscall.Credential
	at   descriptors
	// sink gets the output from the first byte on; nil drops it until the child is directed.
	sink func(output.Stream, []byte)
	// files are further descriptors by number; 0, 1 and 2 are /dev/null where nothing else is.
	files map[int]*os.File
}

// child is a running driver or program: a process, its output, and the frames it sends.
type child struct {
	process *process.Process
	orders  *os.File
	frames  chan frame
	pumps   []*output.Pump
	ended   sync.Once

	mu   sync.Mutex
	sink func(output.Stream, []byte)
}

// ends are the descriptors that only the child needs; they are closed once it has them.
type ends []int

func (e ends) close() {
	for _, fd := range e {
		if err := unix.Close(fd); err != nil {
			log.Printf("event=descriptor_not_closed error=%q", err)
		}
	}
}

// startChild starts a process with pipes for its orders, its frames and its two outputs.
func startChild(supervisor *process.Supervisor, id string, spec childSpec) (*child, error) {
	null, err := plain.Null()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	c := &child{frames: make(chan frame), sink: spec.sink}
	var theirs ends
	defer func() { theirs.close() }()
	orders, toChild, err := inputPipe()
	if err != nil {
		return nil, err
	}
	c.orders = toChild
	theirs = append(theirs, orders)
	var ours []*os.File
	for range 3 {
		read, write, err := output.Pipe()
		if err != nil {
			return nil, errors.Join(err, closeAll(append(ours, toChild)))
		}
		ours, theirs = append(ours, read), append(theirs, write)
	}
	files := standard(null, spec.files)
	files[spec.at.orders], files[spec.at.frames] = uintptr(theirs[0]), uintptr(theirs[1])
	files[spec.at.stdout], files[spec.at.stderr] = uintptr(theirs[2]), uintptr(theirs[3])
	c.process, err = supervisor.Start(process.Spec{
		ID: id, Path: spec.path, Argv: spec.argv, Env: spec.env, Dir: spec.dir, User: spec.user,
		Files: inOrder(files),
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(append(ours, toChild)))
	}
	return c, c.listen(ours)
}

// inputPipe makes a pipe towards a child: its end blocks as programs expect, ours does not.
func inputPipe() (theirs int, ours *os.File, err error) {
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(pair[1], true); err != nil {
		return -1, nil, errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return pair[0], os.NewFile(uintptr(pair[1]), "orders"), nil
}

func standard(null *os.File, further map[int]*os.File) map[int]uintptr {
	files := map[int]uintptr{0: null.Fd(), 1: null.Fd(), 2: null.Fd()}
	for number, file := range further {
		files[number] = file.Fd()
	}
	return files
}

// inOrder lists descriptors by number; gaps are closed in the child.
func inOrder(files map[int]uintptr) []uintptr {
	highest := 0
	for number := range files {
		highest = max(highest, number)
	}
	list := make([]uintptr, highest+1)
	for number := range list {
		list[number] = ^uintptr(0)
		if fd, present := files[number]; present {
			list[number] = fd
		}
	}
	return list
}

func closeAll(files []*os.File) error {
	var failures []error
	for _, file := range files {
		failures = append(failures, file.Close())
	}
	return errors.Join(failures...)
}

// listen reads frames and output from now on.
func (c *child) listen(ours []*os.File) error {
	go c.readFrames(ours[0])
	for i, stream := range []output.Stream{output.Stdout, output.Stderr} {
		pump, err := output.StartPump(ours[i+1], func(data []byte) { c.print(stream, data) })
		if err != nil {
			c.end()
			return err
		}
		c.pumps = append(c.pumps, pump)
	}
	return nil
}

// readFrames passes frames on until the child closed its end. Whoever follows the child takes them.
func (c *child) readFrames(from *os.File) {
	defer close(c.frames)
	defer from.Close()
	reader := bufio.NewReader(from)
	for {
		f, err := readFrame(reader)
		if err != nil {
			return
		}
		select {
		case c.frames <- f:
		case <-c.process.Done():
			// Nobody may be there to take it any more; one last chance is enough.
			select {
			case c.frames <- f:
			case <-time.After(lastFrames):
				return
			}
		}
	}
}

// print receives output. Between cells nobody wants it.
func (c *child) print(stream output.Stream, data []byte) {
	c.mu.Lock()
	sink := c.sink
	c.mu.Unlock()
	if sink != nil {
		sink(stream, data)
	}
}

// direct says where output goes from now on.
func (c *child) direct(sink func(output.Stream, []byte)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sink = sink
}

// drain delivers what the child printed up to now.
func (c *child) drain() {
	for _, pump := range c.pumps {
		pump.Drain()
	}
}

// order writes to the child. One that is gone is no error here: its end is seen anyway.
func (c *child) order(data []byte) error {
	_, err := c.orders.Write(data)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// longestTranscript is enough for what a program says when it cannot start.
const longestTranscript = 64 << 10

// transcript collects the beginning of what a child prints.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) add(_ output.Stream, data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(data[:min(len(data), longestTranscript-t.text.Len())])
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

func (c *child) alive() bool {
	select {
	case <-c.process.Done():
		return false
	default:
		return true
	}
}

// end kills the child with everything it started, and gives back what it held.
func (c *child) end() { c.ended.Do(c.finish) }

func (c *child) finish() {
	c.direct(nil)
	c.process.Tree.Kill()
	<-c.process.Done()
	c.process.Release()
	for _, pump := range c.pumps {
		pump.Abandon()
	}
	if err := c.orders.Close(); err != nil {
		log.Printf("event=orders_not_closed error=%q", err)
	}
}
