// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"io"
	"log"
	"os"
	"sync"
)

// mostWaiting is what is kept of the entrypoint's output while the host does not take it.
const mostWaiting = 1 << 20

// openOutput returns where the daemon writes what the entrypoint printed. It is passed to the host as
// fast as the host takes it; writing never waits for that, and the oldest part is lost when too much waits.
func openOutput() (*os.File, error) {
	port, err := openPort(outputPort)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	waiting := &backlog{}
	waiting.some = sync.NewCond(&waiting.mu)
	go waiting.fill(read)
	go waiting.drain(port)
	return write, nil
}

type backlog struct {
	mu   sync.Mutex
	some *sync.Cond
	data []byte
}

func (b *backlog) fill(from io.Reader) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		if err != nil {
			log.Printf("event=output_ended error=%q", err)
			return
		}
		b.add(chunk[:n])
	}
}

func (b *backlog) add(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, data...)
	if excess := len(b.data) - mostWaiting; excess > 0 {
		b.data = append([]byte(nil), b.data[excess+mostWaiting/2:]...)
	}
	b.some.Signal()
}

func (b *backlog) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 {
		b.some.Wait()
	}
	taken := b.data
	b.data = nil
	return taken
}

func (b *backlog) drain(to io.Writer) {
	for {
		if _, err := to.Write(b.take()); err != nil {
			log.Printf("event=output_lost error=%q", err)
		}
	}
}
