// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"errors"
	"io"
)

const pieceSize = 16 << 10

// Reader is a body without secrets. It holds back only what may be the beginning of one; with lines,
// for streams of events, no line that is complete.
func (m *Matcher) Reader(from io.ReadCloser, lines bool) io.ReadCloser {
	return &reader{matcher: m, from: from, lines: lines}
}

type reader struct {
	matcher *Matcher
	from    io.ReadCloser
	lines   bool
	held    []byte // read and not looked at to the end
	covered int    // bytes of held that belong to a secret which was replaced
	clean   []byte // not given away yet
	room    []byte
	buffer  []byte
	failed  error
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.clean) == 0 {
		if r.failed != nil {
			return 0, r.failed
		}
		r.fill()
	}
	n := copy(p, r.clean)
	r.clean = r.clean[n:]
	return n, nil
}

func (r *reader) fill() {
	if r.room == nil {
		r.room = make([]byte, pieceSize)
	}
	n, err := r.from.Read(r.room)
	r.held = append(r.held, r.room[:n]...)
	final := errors.Is(err, io.EOF)
	r.failed = err
	if err != nil && !final {
		return // what is held back stays so: the end of it is not known
	}
	var used int
	r.clean, used, r.covered = r.matcher.scan(r.buffer[:0], r.held, r.covered, final, r.lines)
	r.buffer = r.clean[:0]
	r.held = append(r.held[:0], r.held[used:]...)
}

func (r *reader) Close() error { return r.from.Close() }
