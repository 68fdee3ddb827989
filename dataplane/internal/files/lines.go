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

// copyLines writes the wanted lines joined by single line feeds: CRLF becomes LF, and no line feed follows the last
// line. Lines may be longer than any buffer.
func copyLines(out *bufio.Writer, in io.Reader, wanted lineRange) error {
	reader := bufio.NewReaderSize(in, 64<<10)
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

// copyLine leaves out the line end. A CR at the end of a piece waits until it is clear what follows.
func copyLine(out *bufio.Writer, reader *bufio.Reader) error {
	pendingCR := false
	err := eachPiece(reader, func(piece []byte) error {
		if pendingCR && !bytes.Equal(piece, []byte("\n")) {
			if err := out.WriteByte('\r'); err != nil {
				return err
			}
		}
		text, ended := bytes.CutSuffix(piece, []byte("\n"))
		text, pendingCR = bytes.CutSuffix(text, []byte("\r"))
		if ended {
			pendingCR = false
		}
		_, err := out.Write(text)
		return err
	})
	if errors.Is(err, io.EOF) && pendingCR {
		return errors.Join(out.WriteByte('\r'), err)
	}
	return err
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
