// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"bytes"
	"testing"

	"casulo.dev/dataplane/internal/output"
)

func FuzzMessage(f *testing.F) {
	for _, seed := range []string{`{"type":"resize","cols":120,"rows":40}`, `{"type":"resize","cols":-1}`, `{"cols":99999999,"rows":1}`, `[]`, `{"type":5}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMessage(text)
		if err != nil {
			return
		}
		if wanted, given := m.size(); given && (int(wanted.cols) != m.Cols || int(wanted.rows) != m.Rows || m.Cols*m.Rows == 0) {
			t.Errorf("%s wants %+v", text, wanted)
		}
	})
}

func TestFrames(t *testing.T) {
	buffer := new(frameBuffer)
	n := copy(buffer.payload(), "hello")
	piece := output.Piece{Stream: output.Stderr, Offset: 258, Data: buffer.payload()[:n]}
	if got := buffer.live(piece); !bytes.Equal(got, []byte("\x02hello")) {
		t.Errorf("%q", got)
	}
	if got := buffer.replay(piece); !bytes.Equal(got, []byte("\x03\x00\x00\x00\x00\x00\x00\x01\x02hello")) {
		t.Errorf("%q", got)
	}
}
