// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package output

import "slices"

// State says why Next returned no bytes.
type State uint8

// The states of a reader.
const (
	// More means that bytes were returned.
	More State = iota
	// Idle means that nothing new is there yet; Ready tells when to ask again.
	Idle
	// Ended means that everything up to the seal was returned.
	Ended
)

// Piece is a run of bytes of one stream.
type Piece struct {
	Stream Stream
	// Offset is where in the log the piece starts.
	Offset int64
	Data   []byte
}

// Reader follows a log from its first byte. While attached it holds back the writer rather than
// miss bytes. One goroutine uses it.
type Reader struct {
	log      *Log
	position int64
}

// Attach starts a reader at the oldest byte kept. Detach it.
func (l *Log) Attach() *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	reader := &Reader{log: l, position: l.base}
	l.readers = append(l.readers, reader)
	return reader
}

// Detach lets the log forget what this reader has not seen.
func (r *Reader) Detach() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.log.readers = slices.DeleteFunc(r.log.readers, func(other *Reader) bool { return other == r })
	r.log.room.Broadcast()
}

var always = func() chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}()

// Ready returns a channel that is closed when Next has something to say.
func (r *Reader) Ready() <-chan struct{} {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed || r.position < l.end {
		return always
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Next copies the next bytes into buffer, as far as they belong to one stream and are at hand.
func (r *Reader) Next(buffer []byte) (Piece, State, error) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.end
	if l.sealed {
		limit = l.sealEnd
	}
	if r.position >= limit {
		if l.sealed {
			return Piece{}, Ended, nil
		}
		return Piece{}, Idle, nil
	}
	return r.take(buffer, limit)
}

func (r *Reader) take(buffer []byte, limit int64) (Piece, State, error) {
	l := r.log
	stream, next := l.streamAt(r.position)
	size := int(min(int64(len(buffer)), next-r.position, limit-r.position))
	b, within, n := l.locate(r.position, size)
	piece := Piece{Stream: stream, Offset: r.position, Data: buffer[:n]}
	if b == nil {
		copy(piece.Data, l.tail[within:])
	} else if err := r.readUnlocked(*b, within, piece.Data); err != nil {
		return Piece{}, Ended, err
	}
	r.position += int64(n)
	r.forget()
	return piece, More, nil
}

// readUnlocked reads from disk without the lock: an attached reader's block cannot be dropped.
func (r *Reader) readUnlocked(b block, within int, p []byte) error {
	r.log.mu.Unlock()
	defer r.log.mu.Lock()
	return r.log.store.read(b, within, p)
}

// forget drops the stream changes that no attached reader needs and lets the writer go on.
func (r *Reader) forget() {
	l := r.log
	oldest := r.position
	for _, other := range l.readers {
		oldest = min(oldest, other.position)
	}
	passed := 0
	for passed+1 < len(l.changes) && l.changes[passed+1].offset <= oldest {
		passed++
	}
	l.changes = l.changes[passed:]
	l.room.Broadcast()
}
