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

// Reader follows a log. While attached it holds back the writer rather than miss bytes, unless it
// is lossy: then it skips to the oldest byte kept, which shows in the offsets. One goroutine uses it.
type Reader struct {
	log      *Log
	position int64
	lines    int64 // how many line ends it has read
	lossy    bool
	paced    bool
}

// Attach starts a reader of a log that has only begun. The writer keeps within reach of it, so that
// the end of the command comes soon. Detach it.
func (l *Log) Attach() *Reader { return l.attach(0, true) }

// AttachAt starts a reader at an offset, as far as its byte is kept. Detach it.
func (l *Log) AttachAt(offset int64) *Reader { return l.attach(offset, false) }

func (l *Log) attach(offset int64, paced bool) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	reader := &Reader{log: l, position: min(max(offset, l.base), l.end), paced: paced}
	l.readers = append(l.readers, reader)
	return reader
}

// Watch starts a lossy reader at an offset. There is nothing to detach.
func (l *Log) Watch(offset int64) *Reader {
	base, end := l.Range()
	return &Reader{log: l, position: min(max(offset, base), end), lossy: true}
}

// Position is the offset of the next byte.
func (r *Reader) Position() int64 { return r.position }

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
	if r.lossy {
		r.position = max(r.position, l.base)
	}
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
	} else if err := r.readBlock(*b, within, piece.Data); err != nil {
		return Piece{}, Ended, err
	}
	r.position += int64(n)
	r.lines += lineEnds(piece.Data)
	r.forget()
	return piece, More, nil
}

// readBlock reads from disk, without the lock where it can: an attached reader's block is not dropped.
func (r *Reader) readBlock(b block, within int, p []byte) error {
	if r.lossy {
		return r.log.store.read(b, within, p)
	}
	r.log.mu.Unlock()
	defer r.log.mu.Lock()
	return r.log.store.read(b, within, p)
}

// forget drops the stream changes that no attached reader needs and lets the writer go on.
func (r *Reader) forget() {
	l := r.log
	if r.lossy {
		return
	}
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
