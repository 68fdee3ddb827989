// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package output

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chunkSize is how much one read takes from a pipe.
const chunkSize = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// Pump moves bytes from a descriptor of ours to a sink until every writer closed its end. Processes
// that outlive the command keep their writing end, so the end of the command is told by Drain.
type Pump struct {
	file   *os.File
	raw    syscall.RawConn
	sink   func([]byte)
	closed chan struct{}

	mu      sync.Mutex
	waiting []chan struct{} // calls of Drain
}

// Pipe makes a pipe: the end to pump from, and the descriptor for the child, which the caller closes.
func Pipe() (read *os.File, write int, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(ends[0], true); err != nil {
		return nil, -1, errors.Join(err, unix.Close(ends[0]), unix.Close(ends[1]))
	}
	return os.NewFile(uintptr(ends[0]), "pipe"), ends[1], nil
}

// StartPump owns the file from now on. The sink may keep no reference to what it is given.
func StartPump(file *os.File, sink func([]byte)) (*Pump, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &Pump{file: file, raw: raw, sink: sink, closed: make(chan struct{})}
	go p.run()
	return p, nil
}

// Drain delivers what is in the pipe at this moment and returns. It never waits for writers.
func (p *Pump) Drain() {
	done := make(chan struct{})
	p.mu.Lock()
	p.waiting = append(p.waiting, done)
	// The deadline interrupts the wait for bytes. It fails only on a closed file, and then closed
	// is about to be closed as well.
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	p.mu.Unlock()
	select {
	case <-done:
	case <-p.closed:
	}
}

// Closed is closed when no writer is left.
func (p *Pump) Closed() <-chan struct{} { return p.closed }

// Abandon closes our end: survivors that still write get a broken pipe.
func (p *Pump) Abandon() {
	// Closing twice is the only error, and harmless.
	_ = p.file.Close()
}

func (p *Pump) run() {
	defer close(p.closed)
	defer p.Abandon()
	for {
		_, err := p.move(chunkSize)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.answer()
			continue
		}
		if err != nil {
			return
		}
	}
}

// answer serves the calls of Drain that interrupted the wait.
func (p *Pump) answer() {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = nil
	// Lifting a deadline fails only on a closed file, which the next read reports.
	_ = p.file.SetReadDeadline(time.Time{})
	p.mu.Unlock()
	p.rest()
	for _, done := range waiting {
		close(done)
	}
}

// rest delivers what is in the pipe now, however fast survivors refill it.
func (p *Pump) rest() {
	left := 0
	// Control fails only on a closed file: then nothing is left to read.
	_ = p.raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			left = n
		}
	})
	for left > 0 {
		n, err := p.move(min(left, chunkSize))
		if err != nil {
			return
		}
		left -= n
	}
}

var errEnded = errors.New("every writer closed its end")

// move waits for bytes and delivers at most limit of them. The buffer is borrowed only once there
// is something to read: an idle pump holds none.
func (p *Pump) move(limit int) (n int, err error) {
	var chunk *[chunkSize]byte
	waitErr := p.raw.Read(func(fd uintptr) bool {
		chunk = chunks.Get().(*[chunkSize]byte)
		n, err = readOnce(int(fd), chunk[:limit])
		if err == unix.EAGAIN {
			chunks.Put(chunk)
			return false
		}
		return true
	})
	if waitErr != nil {
		return 0, waitErr
	}
	defer chunks.Put(chunk)
	if n <= 0 {
		return 0, errors.Join(errEnded, err)
	}
	p.sink(chunk[:n])
	return n, nil
}

func readOnce(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return n, err
		}
	}
}
