// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package strict

import (
	"net/http"
	"strings"
	"sync/atomic"
)

const (
	maxLine = 512                              // bytes of the request line that are kept
	maxName = len("transfer-encoding") + 1 + 8 // longer names are of no interest
)

// head reads the head of one request as it passes by. Only the goroutine that reads from the connection touches it
// until finished is set; the server reads the whole head before it calls the handler.
type head struct {
	finished atomic.Bool

	line     []byte // the request line
	name     []byte // of the current header line
	inName   bool
	lines    int
	length   int // of the current line, its end not counted
	previous byte

	bareLF, sawLength, sawEncoding bool
}

// restart prepares for the next request of a connection.
func (h *head) restart() {
	*h = head{line: h.line[:0], name: h.name[:0]}
}

func (h *head) feed(data []byte) {
	if h.finished.Load() {
		return
	}
	for _, b := range data {
		switch {
		case b == '\n':
			if h.endLine() {
				h.finished.Store(true)
				return
			}
		case b != '\r':
			h.char(b)
		}
		h.previous = b
	}
}

// endLine reports whether the head ends here.
func (h *head) endLine() bool {
	h.bareLF = h.bareLF || h.previous != '\r'
	if h.length == 0 && h.lines > 0 {
		return true
	}
	h.lines++
	h.length, h.inName, h.name = 0, true, h.name[:0]
	return false
}

func (h *head) char(b byte) {
	h.length++
	switch {
	case h.lines == 0:
		if len(h.line) < maxLine {
			h.line = append(h.line, b)
		}
	case h.inName && b == ':':
		h.inName = false
		name := strings.TrimSpace(string(h.name))
		h.sawLength = h.sawLength || strings.EqualFold(name, "content-length")
		h.sawEncoding = h.sawEncoding || strings.EqualFold(name, "transfer-encoding")
	case h.inName && len(h.name) < maxName:
		h.name = append(h.name, b)
	}
}

// faultOf says what is wrong with a request, or "". What was seen counts only if it is this request that was seen: of
// requests sent without waiting for answers, the server may have read a part ahead.
func (h *head) faultOf(r *http.Request) string {
	if !h.finished.Load() || !h.isOf(r) {
		return ""
	}
	switch {
	case h.bareLF:
		return "a header line ends in LF without CR"
	case h.sawLength && h.sawEncoding:
		return "the request has both Content-Length and Transfer-Encoding"
	}
	return ""
}

// isOf compares the request line; its first byte may have been read while the previous request was still open.
func (h *head) isOf(r *http.Request) bool {
	want, got := requestLine(r), string(h.line)
	return got == want || (len(want) > 0 && got[:min(len(got), maxLine-1)] == want[1:])
}
