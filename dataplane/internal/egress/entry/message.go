// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// message is the head of an HTTP/1 request or response, kept as it came. Whatever two programs could
// read differently is refused: the next one must see the same requests as this one.
type message struct {
	raw     []byte
	start   string
	headers []header
}

type header struct {
	name, value string
	line        []byte // as it came, with its line end
}

const longestHead = 64 << 10

var errTooLong = errors.New("the head is too long")

// readMessage reads up to the empty line. io.EOF means that there is no further message.
func readMessage(r *bufio.Reader) (*message, error) {
	m := &message{}
	for {
		line, err := readLine(r, longestHead-len(m.raw))
		if err != nil {
			if errors.Is(err, io.EOF) && len(m.raw)+len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		m.raw = append(m.raw, line...)
		text := string(line[:len(line)-2])
		switch {
		case m.start == "" && text == "":
			return nil, errors.New("an empty line stands before the message")
		case m.start == "":
			m.start = text
		case text == "":
			return m, nil
		default:
			if err := m.addHeader(text, line); err != nil {
				return nil, err
			}
		}
	}
}

// readLine reads up to CR LF; no other line end is accepted.
func readLine(r *bufio.Reader, room int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > room {
			return nil, errTooLong
		}
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
	if len(line) < 2 || line[len(line)-2] != '\r' || bytes.ContainsAny(line[:len(line)-2], "\r\x00") {
		return nil, errors.New("a line has no proper end")
	}
	return line, nil
}

func (m *message) addHeader(text string, line []byte) error {
	name, value, found := strings.Cut(text, ":")
	if !found || name == "" || strings.Trim(name, tokenChars) != "" {
		return fmt.Errorf("%.40q is no header", text)
	}
	m.headers = append(m.headers, header{strings.ToLower(name), strings.Trim(value, " \t"), line})
	return nil
}

const tokenChars = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func (m *message) values(name string) []string {
	var found []string
	for _, each := range m.headers {
		if each.name == name {
			found = append(found, each.value)
		}
	}
	return found
}

// tokens are the comma-separated words of a header, in lower case.
func (m *message) tokens(name string) []string {
	var words []string
	for _, value := range m.values(name) {
		for _, word := range strings.Split(value, ",") {
			if word = strings.ToLower(strings.TrimSpace(word)); word != "" {
				words = append(words, word)
			}
		}
	}
	return words
}

// without is the head as it came but for some headers and one word of Connection.
func (m *message) without(names []string, word string) []byte {
	out := []byte(m.start + "\r\n")
	for _, each := range m.headers {
		switch {
		case slices.Contains(names, each.name):
		case each.name == "connection":
			kept := slices.DeleteFunc(strings.Split(each.value, ","), func(w string) bool {
				w = strings.ToLower(strings.TrimSpace(w))
				return w == word || slices.Contains(names, w)
			})
			if len(kept) > 0 {
				out = append(out, "Connection:"+strings.Join(kept, ",")+"\r\n"...)
			}
		default:
			out = append(out, each.line...)
		}
	}
	return append(out, "\r\n"...)
}

// body tells how the body is framed: length -1 is chunked, -2 is up to the end of the connection.
func (m *message) body(whenUnsaid int64) (int64, error) {
	encodings, lengths := m.tokens("transfer-encoding"), m.values("content-length")
	switch {
	case len(m.values("transfer-encoding")) > 0 && (len(encodings) != 1 || encodings[0] != "chunked"):
		return 0, fmt.Errorf("transfer encoding %q is not understood", encodings)
	case len(encodings) > 0 && len(lengths) > 0:
		return 0, errors.New("both a length and a transfer encoding are given")
	case len(encodings) > 0:
		return -1, nil
	case len(lengths) == 0:
		return whenUnsaid, nil
	case len(lengths) > 1 || strings.Trim(lengths[0], "0123456789") != "" || len(lengths[0]) > 18:
		return 0, fmt.Errorf("content length %q is not understood", lengths)
	}
	return strconv.ParseInt(lengths[0], 10, 64)
}

const untilEnd = -2

// copyBody passes a body on as it is framed and returns its bytes.
func copyBody(to io.Writer, from *bufio.Reader, length int64) (int64, error) {
	switch length {
	case 0:
		return 0, nil
	case -1:
		return copyChunks(to, from)
	case untilEnd:
		return io.Copy(to, from)
	}
	n, err := io.CopyN(to, from, length)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// copyChunks passes chunks and trailers on byte for byte.
func copyChunks(to io.Writer, from *bufio.Reader) (total int64, err error) {
	for {
		line, err := readLine(from, 4096)
		if err != nil {
			return total, err
		}
		size, _, _ := strings.Cut(string(line[:len(line)-2]), ";")
		length, err := strconv.ParseUint(strings.TrimRight(size, " \t"), 16, 62)
		if err != nil {
			return total, fmt.Errorf("%.20q is no chunk size", size)
		}
		if _, err := to.Write(line); err != nil {
			return total, err
		}
		if length == 0 {
			return total, copyTrailers(to, from)
		}
		n, err := io.CopyN(to, from, int64(length))
		total += n
		if err != nil {
			return total, err
		}
		end := make([]byte, 2)
		if _, err := io.ReadFull(from, end); err != nil || string(end) != "\r\n" {
			return total, errors.New("a chunk is longer than it said")
		}
		if _, err := to.Write(end); err != nil {
			return total, err
		}
	}
}

func copyTrailers(to io.Writer, from *bufio.Reader) error {
	for {
		line, err := readLine(from, longestHead)
		if err != nil {
			return err
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
		if len(line) == 2 {
			return nil
		}
	}
}

// statusOf reads a status line; 0 is none.
func statusOf(start string) int {
	if len(start) < 12 || !strings.HasPrefix(start, "HTTP/1.") || start[8] != ' ' {
		return 0
	}
	status, err := strconv.Atoi(start[9:12])
	if err != nil || status < 100 || len(start) > 12 && start[12] != ' ' {
		return 0
	}
	return status
}
