// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package stream

import (
	"bytes"
	"sync/atomic"

	"casulo.dev/dataplane/internal/output"
)

// framing turns pieces of output into events.
type framing interface {
	piece(out *buffer, p output.Piece)
	// finish sends what was held back, once no more pieces come.
	finish(out *buffer)
	// release forgets what is held, also when nobody reads on.
	release()
}

func kindOf(s output.Stream) string {
	if s == output.Stderr {
		return "stderr"
	}
	return "stdout"
}

// rawFraming sends exact bytes at once. Only the start of an unfinished character waits.
type rawFraming struct {
	held [3]heldBytes // by stream
}

type heldBytes struct {
	offset int64
	data   []byte
}

func (f *rawFraming) piece(out *buffer, p output.Piece) {
	held := &f.held[p.Stream]
	offset, data := p.Offset, p.Data
	if len(held.data) > 0 {
		offset, data = held.offset, append(held.data, data...)
	}
	whole := len(data) - output.Unfinished(data)
	if whole > 0 {
		out.add(appendRaw(out.bytes, kindOf(p.Stream), offset, data[:whole]))
	}
	rest := data[whole:]
	if len(rest) <= len(p.Data) {
		held.offset = p.Offset + int64(len(p.Data)-len(rest))
	}
	held.data = append([]byte(nil), rest...)
}

func (f *rawFraming) finish(out *buffer) {
	for stream := range f.held {
		if held := f.held[stream]; len(held.data) > 0 {
			out.add(appendRaw(out.bytes, kindOf(output.Stream(stream)), held.offset, held.data))
		}
	}
}

func (f *rawFraming) release() { f.held = [3]heldBytes{} }

// maxHeldLines bounds the memory for unfinished lines of all streams together.
const maxHeldLines = 32 << 20

var heldLines atomic.Int64

// lineFraming sends one event per line, without its end: CR, LF or CRLF. An empty line becomes the
// text "\n". A line that outgrows the bound is sent in several events.
type lineFraming struct {
	lines [3]line
	head  []byte // how every event of the piece at hand starts
}

type line struct {
	parts   [][]byte
	size    int
	afterCR bool
}

func (f *lineFraming) piece(out *buffer, p output.Piece) {
	l, data := &f.lines[p.Stream], p.Data
	f.begin(p.Stream)
	for len(data) > 0 {
		if l.afterCR && data[0] == '\n' {
			data, l.afterCR = data[1:], false
			continue
		}
		l.afterCR = false
		end := lineEnd(data)
		if end < 0 {
			l.hold(out, f.head, data)
			return
		}
		l.emit(out, f.head, data[:end])
		l.afterCR = data[end] == '\r'
		data = data[end+1:]
	}
}

func (f *lineFraming) begin(stream output.Stream) {
	f.head = append(appendHead(f.head[:0], kindOf(stream)), `,"text":"`...)
}

// lineEnd finds the first CR or LF.
func lineEnd(data []byte) int {
	end := bytes.IndexByte(data, '\n')
	if end >= 0 {
		data = data[:end]
	}
	if cr := bytes.IndexByte(data, '\r'); cr >= 0 {
		return cr
	}
	return end
}

func (f *lineFraming) finish(out *buffer) {
	for stream := range f.lines {
		if l := &f.lines[stream]; l.size > 0 {
			f.begin(output.Stream(stream))
			l.emit(out, f.head, nil)
		}
	}
}

func (f *lineFraming) release() {
	for stream := range f.lines {
		f.lines[stream].release()
	}
}

// hold keeps the start of a line until its end arrives.
func (l *line) hold(out *buffer, head, data []byte) {
	if heldLines.Load()+int64(len(data)) <= maxHeldLines {
		l.add(data)
		return
	}
	rest := output.Unfinished(data)
	l.emit(out, head, data[:len(data)-rest])
	l.add(data[len(data)-rest:])
}

// add appends to the held start. No part but the last ends inside a character.
func (l *line) add(data []byte) {
	heldLines.Add(int64(len(data)))
	l.size += len(data)
	last := len(l.parts) - 1
	if last >= 0 && cap(l.parts[last])-len(l.parts[last]) >= len(data) {
		l.parts[last] = append(l.parts[last], data...)
		return
	}
	var cut []byte
	if last >= 0 {
		whole := len(l.parts[last]) - output.Unfinished(l.parts[last])
		l.parts[last], cut = l.parts[last][:whole], l.parts[last][whole:]
	}
	part := make([]byte, 0, max(len(cut)+len(data), min(l.size, 64<<10)))
	l.parts = append(l.parts, append(append(part, cut...), data...))
}

// emit sends the held start and its end as one event.
func (l *line) emit(out *buffer, head, end []byte) {
	dst := append(out.bytes, head...)
	if l.size == 0 {
		if len(end) == 0 {
			end = []byte("\n")
		}
		out.add(append(appendEscaped(dst, end), "\"}\n\n"...))
		return
	}
	l.add(end)
	out.add(dst)
	for _, part := range l.parts {
		out.add(appendEscaped(out.bytes, part))
	}
	out.add(appendEnd(append(out.bytes, '"')))
	l.release()
}

func (l *line) release() {
	heldLines.Add(-int64(l.size))
	l.parts, l.size = nil, 0
}
