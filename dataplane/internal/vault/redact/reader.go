// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"bytes"
	"errors"
	"io"
)

const (
	pieceSize   = 16 << 10
	longestLine = 256 << 10
)

// Reader is a body without secrets. How much of it is held back does not depend on what it says, or
// whoever can have a text sent piece by piece would learn from the delays how a secret begins: it is
// always as much as the longest secret can take, and with lines, for streams of events, the line that
// is not complete. The secrets are asked for again at each piece, since they may change meanwhile.
func Reader(from io.ReadCloser, lines bool, secrets func() *Matcher) io.ReadCloser {
	return &reader{secrets: secrets, from: from, lines: lines}
}

type reader struct {
	secrets func() *Matcher
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
	m := r.secrets()
	until := len(r.held)
	if !final {
		until = r.until(m)
	}
	var used int
	r.clean, used, r.covered = m.scan(r.buffer[:0], r.held, until, r.covered, final, r.lines)
	r.buffer = r.clean[:0]
	r.held = append(r.held[:0], r.held[used:]...)
}

// until is up to where what was read may be given away.
func (r *reader) until(m *Matcher) int {
	if r.lines && len(r.held) < longestLine {
		return bytes.LastIndexByte(r.held, '\n') + 1
	}
	return max(0, len(r.held)-m.widest)
}

func (r *reader) Close() error { return r.from.Close() }
