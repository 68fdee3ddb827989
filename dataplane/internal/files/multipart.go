// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// The reader of multipart/form-data works on one large buffer and hands out slices of it: no part is ever held in
// memory, and file data goes to the disk in big writes without another copy.
const (
	multipartBuffer  = 512 << 10
	maxPartHeader    = 64 << 10
	maxNeedle        = 63 // up to here bytes.Index is vectorised
	maxBoundaryBytes = 200
)

var (
	errPartHeader = errors.New("a part has a broken or oversized header")
	errBoundary   = errors.New("the multipart boundary is missing or too long")
)

type multipartReader struct {
	source     io.Reader
	buffer     []byte
	start, end int
	sourceErr  error
	delimiter  []byte // CRLF "--" boundary
	inPart     bool
}

// part is the head of a part: its form name is all that matters here.
type part struct{ name string }

func newMultipart(source io.Reader, boundary string) (*multipartReader, error) {
	if boundary == "" || len(boundary) > maxBoundaryBytes {
		return nil, errBoundary
	}
	m := &multipartReader{source: source, buffer: make([]byte, multipartBuffer), delimiter: []byte("\r\n--" + boundary)}
	// The first delimiter may open the body without a line break before it.
	m.end = copy(m.buffer, "\r\n")
	m.inPart = true // what precedes the first delimiter is a part to be thrown away
	return m, nil
}

// next moves to the next part; io.EOF after the closing delimiter.
func (m *multipartReader) next() (part, error) {
	if m.inPart {
		if err := m.data(func([]byte) error { return nil }); err != nil {
			return part{}, err
		}
	}
	if err := m.need(len(m.delimiter) + 2); err != nil {
		return part{}, err
	}
	m.start += len(m.delimiter)
	if m.buffer[m.start] == '-' && m.buffer[m.start+1] == '-' {
		m.start += 2
		return part{}, io.EOF
	}
	m.inPart = true
	return m.header()
}

// data hands the rest of the current part to use, piece by piece. The slices are only valid during the call.
func (m *multipartReader) data(use func([]byte) error) error {
	for {
		at, found := m.findDelimiter()
		if at > 0 {
			if err := use(m.buffer[m.start : m.start+at]); err != nil {
				return err
			}
			m.start += at
		}
		if found {
			m.inPart = false
			return nil
		}
		if err := m.fill(); err != nil {
			return err
		}
	}
}

// findDelimiter returns how many buffered bytes are surely data, and whether a delimiter follows them.
func (m *multipartReader) findDelimiter() (at int, found bool) {
	window := m.buffer[m.start:m.end]
	needle := m.delimiter[:min(len(m.delimiter), maxNeedle)]
	for from := 0; ; {
		i := bytes.Index(window[from:], needle)
		if i < 0 {
			return max(from, safeLength(window, m.delimiter)), false
		}
		i += from
		rest := window[i:]
		switch {
		case len(rest) < len(m.delimiter)+2:
			return i, false
		case bytes.HasPrefix(rest, m.delimiter) && endsDelimiter(rest[len(m.delimiter):]):
			return i, true
		}
		from = i + 1
	}
}

// safeLength leaves out a tail that could be the beginning of a delimiter: it must start with CR.
func safeLength(window, delimiter []byte) int {
	from := max(0, len(window)-len(delimiter)+1)
	for {
		i := bytes.IndexByte(window[from:], '\r')
		if i < 0 {
			return len(window)
		}
		from += i
		if bytes.HasPrefix(delimiter, window[from:]) {
			return from
		}
		from++
	}
}

// endsDelimiter tells a delimiter from data that merely begins like one.
func endsDelimiter(after []byte) bool {
	return string(after[:2]) == "--" || string(after[:2]) == "\r\n" || after[0] == ' ' || after[0] == '\t'
}

// header reads the lines up to the empty one.
func (m *multipartReader) header() (part, error) {
	head, err := m.headBytes()
	if err != nil {
		return part{}, err
	}
	lines := strings.Split(string(head), "\r\n")
	if strings.Trim(lines[0], " \t") != "" { // the rest of the delimiter's own line
		return part{}, errPartHeader
	}
	var result part
	for _, line := range lines[1:] {
		field, value, ok := strings.Cut(line, ":")
		if !ok {
			return part{}, errPartHeader
		}
		if strings.EqualFold(strings.TrimSpace(field), "Content-Disposition") {
			result.name = formName(value)
		}
	}
	return result, nil
}

// headBytes returns everything before the empty line and moves behind it.
func (m *multipartReader) headBytes() ([]byte, error) {
	for {
		window := m.buffer[m.start:m.end]
		if i := bytes.Index(window, []byte("\r\n\r\n")); i >= 0 {
			m.start += i + 4
			return window[:i], nil
		}
		if len(window) > maxPartHeader {
			return nil, errPartHeader
		}
		if err := m.fill(); err != nil {
			return nil, err
		}
	}
}

// need makes at least n bytes available.
func (m *multipartReader) need(n int) error {
	for m.end-m.start < n {
		if err := m.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill reads until the buffer is full or the source is at its end, so that every write to the disk is a big one. It
// fails when nothing was added: the end of the source inside a part is never a regular one.
func (m *multipartReader) fill() error {
	m.end = copy(m.buffer, m.buffer[m.start:m.end])
	m.start = 0
	added := 0
	for m.sourceErr == nil && m.end < len(m.buffer) {
		n, err := m.source.Read(m.buffer[m.end:])
		m.end += n
		added += n
		m.sourceErr = err
	}
	switch {
	case added > 0:
		return nil
	case errors.Is(m.sourceErr, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return m.sourceErr
}

// formName finds the name parameter of a Content-Disposition value. File names in there may hold anything, so only
// quoting is understood and nothing is validated.
func formName(value string) string {
	for len(value) > 0 {
		var parameter string
		parameter, value = cutParameter(value)
		key, text, _ := strings.Cut(parameter, "=")
		if strings.EqualFold(strings.TrimSpace(key), "name") {
			return unquote(strings.TrimSpace(text))
		}
	}
	return ""
}

// cutParameter splits at the first semicolon outside quotes.
func cutParameter(value string) (parameter, rest string) {
	quoted := false
	for i := 0; i < len(value); i++ {
		switch {
		case value[i] == '\\' && quoted:
			i++
		case value[i] == '"':
			quoted = !quoted
		case value[i] == ';' && !quoted:
			return value[:i], value[i+1:]
		}
	}
	return value, ""
}

func unquote(text string) string {
	if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
		return text
	}
	var out strings.Builder
	text = text[1 : len(text)-1]
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
