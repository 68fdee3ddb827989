// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package stream owns the event stream of a running command: the JSON of each event, how output
// bytes become events in either framing, and when the stream is flushed and ends.
package stream

import (
	"encoding/base64"
	"strconv"
	"time"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendQuoted writes text as a JSON string of ASCII characters only, because some clients split
// streams at Unicode line boundaries. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted[T string | []byte](dst []byte, text T) []byte {
	return append(appendEscaped(append(dst, '"'), text), '"')
}

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (set [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		set[c] = c != '"' && c != '\\'
	}
	return set
}()

func appendEscaped[T string | []byte](dst []byte, text T) []byte {
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if plain[c] {
			i++
			continue
		}
		dst = append(dst, text[start:i]...)
		if c < utf8.RuneSelf {
			dst = appendControl(dst, c)
			i++
		} else {
			var width int
			dst, width = appendRune(dst, string(text[i:min(i+utf8.UTFMax, len(text))]))
			i += width
		}
		start = i
	}
	return append(dst, text[start:]...)
}

func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return appendUnit(dst, uint16(c))
}

func appendRune(dst []byte, text string) ([]byte, int) {
	r, width := utf8.DecodeRuneInString(text)
	if r < 0x10000 {
		return appendUnit(dst, uint16(r)), width
	}
	r -= 0x10000
	dst = appendUnit(dst, 0xd800|uint16(r>>10))
	return appendUnit(dst, 0xdc00|uint16(r&0x3ff)), width
}

func appendUnit(dst []byte, unit uint16) []byte {
	return append(dst, '\\', 'u',
		hexDigits[unit>>12], hexDigits[unit>>8&15], hexDigits[unit>>4&15], hexDigits[unit&15])
}

// appendHead opens an event: its type and its time.
func appendHead(dst []byte, kind string) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","timestamp":`...)
	return strconv.AppendInt(dst, time.Now().UnixMilli(), 10)
}

// appendEnd closes an event; a blank line separates it from the next.
func appendEnd(dst []byte) []byte { return append(dst, "}\n\n"...) }

func appendText[T string | []byte](dst []byte, kind string, text T) []byte {
	dst = append(appendHead(dst, kind), `,"text":`...)
	return appendEnd(appendQuoted(dst, text))
}

// appendRaw writes exact bytes: as text when they are UTF-8, else in base64.
func appendRaw(dst []byte, kind string, offset int64, data []byte) []byte {
	dst = append(appendHead(dst, kind), `,"offset":`...)
	dst = strconv.AppendInt(dst, offset, 10)
	if utf8.Valid(data) {
		return appendEnd(appendQuoted(append(dst, `,"text":`...), data))
	}
	dst = append(dst, `,"base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return appendEnd(append(dst, '"'))
}

// Failure is how a stream ends when the command did not succeed.
type Failure struct {
	Name      string
	Value     string
	Traceback []string
	// Reason is a stable word for programs: exit, signal, timeout, interrupted, oom, start, session_reset.
	Reason string
	Signal string
	// MemoryLimitHit says that the kernel killed something for memory meanwhile.
	MemoryLimitHit bool
	// Text repeats the value for clients of isolated sessions, which look for it there.
	Text  string
	reset bool
}

func appendFailure(dst []byte, f Failure) []byte {
	dst = append(appendHead(dst, "error"), `,"error":{"ename":`...)
	dst = append(appendQuoted(dst, f.Name), `,"evalue":`...)
	dst = append(appendQuoted(dst, f.Value), `,"traceback":[`...)
	for i, line := range f.Traceback {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, line)
	}
	dst = append(dst, "]}"...)
	if f.Reason != "" {
		dst = appendQuoted(append(dst, `,"reason":`...), f.Reason)
	}
	if f.Signal != "" {
		dst = appendQuoted(append(dst, `,"signal":`...), f.Signal)
	}
	if f.MemoryLimitHit {
		dst = append(dst, `,"memory_limit_hit":true`...)
	}
	if f.Text != "" {
		dst = appendQuoted(append(dst, `,"text":`...), f.Text)
	}
	return appendEnd(appendReset(dst, f.reset))
}

// appendReset tells that a session lost its shell, with what was not exported.
func appendReset(dst []byte, reset bool) []byte {
	if reset {
		dst = append(dst, `,"session_reset":true`...)
	}
	return dst
}

func appendComplete(dst []byte, took time.Duration, reset bool) []byte {
	dst = append(appendHead(dst, "execution_complete"), `,"execution_time":`...)
	return appendEnd(appendReset(strconv.AppendInt(dst, took.Milliseconds(), 10), reset))
}
