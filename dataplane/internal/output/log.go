// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package output

import (
	"bytes"
	"errors"
	"sort"
	"sync"
	"unicode/utf8"
)

// Stream tells the two outputs of a process apart.
type Stream uint8

// The streams of a process.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// maxChanges bounds how often the streams may alternate ahead of the slowest attached reader.
const maxChanges = 32 << 10

// How far the writer may run ahead of a paced reader, in bytes of events: a line costs its bytes and
// what wraps them. The end of a command cannot arrive before everything that it printed, so whoever
// follows it in lines of two bytes is not left with a thousand times as many events.
const (
	maxAhead = 8 << 20
	lineCost = 56
)

// ErrDropped says that the wanted bytes were given up to stay within the bounds.
var ErrDropped = errors.New("this part of the output is no longer kept")

// Log is everything a command printed, both streams in order of arrival, addressed by byte offset.
// It keeps at most limit bytes: the oldest go first. Bytes that an attached reader has not seen
// are never dropped; the writer waits for that reader instead.
type Log struct {
	store *Store
	limit int64

	mu      sync.Mutex
	blocks  []block // full ones, the first starts at base
	base    int64
	tail    []byte // what follows the blocks, not spilled yet
	end     int64
	lines   int64 // how many line ends were appended
	changes []change
	readers []*Reader
	sealed  bool
	sealEnd int64
	relaxed bool
	changed chan struct{}
	room    sync.Cond
}

// change marks where in the log a stream starts.
type change struct {
	offset int64
	stream Stream
}

// NewLog makes an empty log.
func NewLog(store *Store, limit int64) *Log {
	l := &Log{store: store, limit: max(limit, blockSize)}
	l.room.L = &l.mu
	return l
}

// Append adds what a stream printed. It may wait for a slow attached reader.
func (l *Log) Append(stream Stream, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(data) > 0 {
		l.makeRoom()
		n := len(data)
		if !l.relaxed {
			n = min(n, blockSize-len(l.tail))
		}
		l.mark(stream)
		l.tail = append(l.tail, data[:n]...)
		l.end += int64(n)
		l.lines += lineEnds(data[:n])
		data = data[n:]
		l.notify()
	}
}

// mark notes where the stream changes. Without an attached reader only the latest change matters.
func (l *Log) mark(stream Stream) {
	last := len(l.changes) - 1
	if last >= 0 && l.changes[last].stream == stream {
		return
	}
	if len(l.readers) == 0 {
		l.changes = l.changes[:0]
	}
	l.changes = append(l.changes, change{l.end, stream})
}

// makeRoom returns when the tail can take more.
func (l *Log) makeRoom() {
	for len(l.tail) >= blockSize || len(l.changes) >= maxChanges || l.tooFarAhead() {
		if len(l.tail) >= blockSize && l.spill() {
			continue
		}
		if len(l.tail) >= blockSize && l.dropOldest() {
			continue
		}
		if l.relaxed || len(l.readers) == 0 {
			return
		}
		l.room.Wait()
	}
}

// tooFarAhead reports whether a paced reader has more to send than a moment's work.
func (l *Log) tooFarAhead() bool {
	if l.relaxed {
		return false
	}
	for _, reader := range l.readers {
		if reader.paced && l.end-reader.position+lineCost*(l.lines-reader.lines) > maxAhead {
			return true
		}
	}
	return false
}

func lineEnds(data []byte) int64 {
	return int64(bytes.Count(data, []byte{'\n'}) + bytes.Count(data, []byte{'\r'}))
}

// spill moves one block of the tail to disk, if the limits allow.
func (l *Log) spill() bool {
	if l.end-l.base > l.limit {
		return false
	}
	stored, err := l.store.write(l.tail[:blockSize])
	if err != nil {
		return false
	}
	l.blocks = append(l.blocks, stored)
	l.tail = l.tail[:copy(l.tail, l.tail[blockSize:])]
	return true
}

// dropOldest gives up the oldest block, unless an attached reader still needs it.
func (l *Log) dropOldest() bool {
	next := l.base + blockSize
	for _, reader := range l.readers {
		if reader.position < next {
			return false
		}
	}
	if len(l.blocks) == 0 {
		l.tail = l.tail[:copy(l.tail, l.tail[blockSize:])]
	} else {
		l.store.release(l.blocks[0])
		l.blocks = l.blocks[1:]
	}
	l.base = next
	return true
}

// Relax lets the writer run ahead of readers, for the bounded rest after the command's end.
func (l *Log) Relax() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.relaxed = true
	l.room.Broadcast()
}

// Seal marks the end of what attached readers get. What arrives later is kept, but not followed.
func (l *Log) Seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sealed {
		l.sealed, l.sealEnd, l.relaxed = true, l.end, false
		l.notify()
	}
}

// keepInMemory is the length up to which a finished log is not worth a page of disk.
const keepInMemory = 1 << 10

// Archive frees the memory of a log that gets no more bytes.
func (l *Log) Archive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.tail) > blockSize && l.spill() {
	}
	if len(l.tail) <= keepInMemory || len(l.tail) > blockSize {
		l.tail = append([]byte(nil), l.tail...)
		return
	}
	stored, err := l.store.write(l.tail)
	if err != nil {
		l.tail = append([]byte(nil), l.tail...)
		return
	}
	l.blocks = append(l.blocks, stored)
	l.tail = nil
}

// Drop forgets all bytes, unless somebody still follows them. Offsets stay: everything counts as no
// longer kept.
func (l *Log) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.readers) > 0 {
		return
	}
	for _, b := range l.blocks {
		l.store.release(b)
	}
	l.blocks, l.tail, l.base = nil, nil, l.end
}

// Range says which offsets are kept: from base up to end. Base is also the number of lost bytes.
func (l *Log) Range() (base, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base, l.end
}

// ReadAt copies bytes from an offset without holding anything back for the caller.
func (l *Log) ReadAt(p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.base {
		return 0, ErrDropped
	}
	p = p[:min(int64(len(p)), l.end-offset)]
	b, within, n := l.locate(offset, len(p))
	if b == nil {
		return copy(p, l.tail[within:]), nil
	}
	return n, l.store.read(*b, within, p[:n])
}

// locate finds the block that holds an offset, nil for the tail, and how much of size it has.
func (l *Log) locate(offset int64, size int) (b *block, within, n int) {
	index := int((offset - l.base) / blockSize)
	within = int((offset - l.base) % blockSize)
	if index >= len(l.blocks) {
		within = int(offset - l.base - int64(len(l.blocks))*blockSize)
		return nil, within, min(size, len(l.tail)-within)
	}
	return &l.blocks[index], within, min(size, l.blocks[index].size-within)
}

// streamAt says whose byte is at an offset and where the next change is.
func (l *Log) streamAt(offset int64) (Stream, int64) {
	after := sort.Search(len(l.changes), func(i int) bool { return l.changes[i].offset > offset })
	next := l.end
	if after < len(l.changes) {
		next = l.changes[after].offset
	}
	if after == 0 {
		// From before the oldest change that is still known.
		return Stdout, next
	}
	return l.changes[after-1].stream, next
}

// notify wakes whoever waits for more.
func (l *Log) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Bytes copies everything that is kept.
func (l *Log) Bytes() ([]byte, error) {
	base, end := l.Range()
	content := make([]byte, end-base)
	for filled := 0; filled < len(content); {
		n, err := l.ReadAt(content[filled:], base+int64(filled))
		if err != nil {
			return nil, err
		}
		filled += n
	}
	return content, nil
}

// Unfinished counts the bytes at the end of data that may still become a character.
func Unfinished(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		start := data[len(data)-n:]
		if utf8.RuneStart(start[0]) {
			if utf8.FullRune(start) {
				return 0
			}
			return n
		}
	}
	return 0
}
