// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"sync"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/stream"
)

// Bounds of a queue: how much waits before the cell has to, how much one event may carry, and what
// an item costs at least, however little it carries.
const (
	maxQueued = 1 << 20
	maxPiece  = 32 << 10
	itemCost  = 256
)

// item is output, or any other event.
type item struct {
	stream output.Stream
	data   []byte
	event  func(*stream.Cell)
}

// queue holds what a cell has to say until its client takes it. Pieces of output grow together
// while they wait, so that many small writes do not become as many events.
type queue struct {
	// ready receives a token when there is something to take; urgent when it is not only output.
	ready  chan struct{}
	urgent chan struct{}

	mu    sync.Mutex
	room  sync.Cond
	items []item
	size  int
	gone  bool
	ended bool
}

func newQueue() *queue {
	q := &queue{ready: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
	q.room.L = &q.mu
	return q
}

// print adds output. The queue copies what it keeps.
func (q *queue) print(s output.Stream, data []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.await() {
		return
	}
	q.size += len(data)
	if last := len(q.items) - 1; last >= 0 && q.items[last].event == nil && q.items[last].stream == s &&
		len(q.items[last].data)+len(data) <= maxPiece {
		q.items[last].data = append(q.items[last].data, data...)
	} else {
		q.size += itemCost
		q.items = append(q.items, item{stream: s, data: append([]byte(nil), data...)})
	}
	mark(q.ready)
}

// add adds an event that stands for about size bytes.
func (q *queue) add(event func(*stream.Cell), size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.await() {
		q.push(event, size)
	}
}

// end adds the last event. It waits for nobody, and nothing comes after it.
func (q *queue) end(event func(*stream.Cell)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.push(event, 0)
	q.ended = true
	q.room.Broadcast()
}

func (q *queue) push(event func(*stream.Cell), size int) {
	q.size += size + itemCost
	q.items = append(q.items, item{event: event})
	mark(q.ready)
	mark(q.urgent)
}

// await returns true once there is room, false when nobody listens any more.
func (q *queue) await() bool {
	for q.size > maxQueued && !q.gone && !q.ended {
		q.room.Wait()
	}
	return !q.gone && !q.ended
}

// take returns everything at hand, and whether that was the last of it.
func (q *queue) take() (items []item, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items, q.items, q.size = q.items, nil, 0
	q.room.Broadcast()
	return items, q.ended
}

// abandon lets the cell go on without a listener.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gone, q.items = true, nil
	q.room.Broadcast()
}

func mark(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
		// One is enough.
	}
}
