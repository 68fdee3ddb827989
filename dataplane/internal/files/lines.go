// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// lineRange asks for limit lines from the first-th on; lines count from 1.
type lineRange struct{ first, limit int64 }

const allLines = int64(1<<63 - 1)

// linesOf is nil when the query asks for no lines.
func linesOf(query url.Values) (*lineRange, error) {
	if !query.Has("offset") && !query.Has("limit") {
		return nil, nil
	}
	first, err := positive(query, "offset", 1)
	if err != nil {
		return nil, err
	}
	limit, err := positive(query, "limit", allLines)
	if err != nil {
		return nil, err
	}
	return &lineRange{first, limit}, nil
}

func positive(query url.Values, name string, otherwise int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, badRequest("%s must be a number from 1 on, not %q", name, text)
	}
	return n, nil
}

func (c *call) sendLines(file io.Reader, wanted lineRange) error {
	c.writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if c.request.Method == http.MethodHead {
		return nil
	}
	out := bufio.NewWriterSize(c.writer, 64<<10)
	if err := copyLines(out, file, wanted); err != nil {
		c.committed = true // some of it may be out
		return err
	}
	return out.Flush()
}

// copyLines writes the wanted lines joined by single line feeds, however they ended before, and no line feed follows
// the last line. Lines may be longer than any buffer.
func copyLines(out *bufio.Writer, in io.Reader, wanted lineRange) error {
	reader := bufio.NewReaderSize(&newlines{source: in}, 64<<10)
	for skipped := int64(1); skipped < wanted.first; skipped++ {
		if err := eachPiece(reader, func([]byte) error { return nil }); err != nil {
			return endIsFine(err)
		}
	}
	for count := int64(0); count < wanted.limit; count++ {
		if _, err := reader.Peek(1); err != nil {
			return endIsFine(err)
		}
		if count > 0 {
			if err := out.WriteByte('\n'); err != nil {
				return err
			}
		}
		if err := copyLine(out, reader); err != nil {
			return endIsFine(err)
		}
	}
	return nil
}

// copyLine leaves out the line end.
func copyLine(out *bufio.Writer, reader *bufio.Reader) error {
	return eachPiece(reader, func(piece []byte) error {
		_, err := out.Write(bytes.TrimSuffix(piece, []byte("\n")))
		return err
	})
}

// newlines turns the line ends of a source, CRLF or CR alone, into line feeds.
type newlines struct {
	source io.Reader
	// afterCR is true when the last byte was a CR, whose line feed may be still to come.
	afterCR bool
}

func (n *newlines) Read(p []byte) (int, error) {
	for {
		count, err := n.source.Read(p)
		kept := n.convert(p[:count])
		if kept > 0 || err != nil || count == 0 {
			return kept, err
		}
	}
}

// convert works in place and returns how many bytes are left.
func (n *newlines) convert(p []byte) int {
	if !n.afterCR && bytes.IndexByte(p, '\r') < 0 {
		return len(p)
	}
	kept := 0
	for _, c := range p {
		if c != '\n' || !n.afterCR {
			p[kept] = c
			if c == '\r' {
				p[kept] = '\n'
			}
			kept++
		}
		n.afterCR = c == '\r'
	}
	return kept
}

// eachPiece reads to the end of the line and hands out what it reads, the line feed included. io.EOF means that the
// file ended without one.
func eachPiece(reader *bufio.Reader, use func([]byte) error) error {
	for {
		piece, err := reader.ReadSlice('\n')
		if len(piece) > 0 {
			if useErr := use(piece); useErr != nil {
				return useErr
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

func endIsFine(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
