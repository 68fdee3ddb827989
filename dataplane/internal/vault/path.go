// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package vault

import (
	"errors"
	"strings"
)

// Path is a request's path in two readings: with what an escape might hide left as it is, and with
// every escape undone. A binding must fit both, so that no reading of a server widens a match.
type Path struct {
	Text string // escapes in upper case, and none where none is needed

	undone string
}

var (
	errNoPath    = errors.New("the target is no path")
	errDots      = errors.New("the path has dot segments")
	errBackslash = errors.New("the path has backslashes")
	errControl   = errors.New("the path has characters that no path has")
	errEndless   = errors.New("the path is escaped again and again")
)

const mostRounds = 6

// NormalPath refuses a path that servers could read in different ways. It is given without its query.
func NormalPath(raw string) (Path, error) {
	if !strings.HasPrefix(raw, "/") {
		return Path{}, errNoPath
	}
	if strings.Contains(raw, "#") { // it ends the path for some, and only an escaped one never does
		return Path{}, errControl
	}
	undone := raw
	for range mostRounds {
		if err := checkReading(undone); err != nil {
			return Path{}, err
		}
		next := unescape(undone)
		if next == undone {
			return Path{canonical(raw), undone}, nil
		}
		undone = next
	}
	return Path{}, errEndless
}

func checkReading(path string) error {
	for i := range len(path) {
		switch c := path[i]; {
		case c == '\\':
			return errBackslash
		case c < 0x20 || c == 0x7f || c == 0xc0 || c == 0xc1: // the last two are in no UTF-8 but disguises
			return errControl
		}
	}
	path = lookalikes.Replace(path)
	if strings.Contains(path, "\\") {
		return errBackslash
	}
	for segment := range strings.SplitSeq(path, "/") {
		word, _, _ := strings.Cut(segment, ";") // some servers take parameters off first
		if word == "." || word == ".." {
			return errDots
		}
	}
	return nil
}

// lookalikes are characters that some servers turn into the ones that they look like.
var lookalikes = strings.NewReplacer("\uff0e", ".", "\u2024", ".", "\uff0f", "/", "\u2215", "/", "\u2044", "/", "\uff3c", "\\", "\u2216", "\\")

// Undone is a part of a target with every escape undone, those of escapes too.
func Undone(part string) string {
	for range mostRounds {
		next := unescape(part)
		if next == part {
			break
		}
		part = next
	}
	return part
}

func unescape(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	out := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if value, ok := escapeAt(path, i); ok {
			out = append(out, value)
			i += 2
			continue
		}
		out = append(out, path[i])
	}
	return string(out)
}

func escapeAt(path string, i int) (byte, bool) {
	if path[i] != '%' || i+2 >= len(path) {
		return 0, false
	}
	high, ok1 := hexOf(path[i+1])
	low, ok2 := hexOf(path[i+2])
	return high<<4 | low, ok1 && ok2
}

func hexOf(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

const upperHex = "0123456789ABCDEF"

// canonical undoes escapes of what needs none and writes all others alike.
func canonical(raw string) string {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c, escaped := raw[i], false
		if value, ok := escapeAt(raw, i); ok {
			c, escaped = value, !isUnreserved(value)
			i += 2
		}
		if escaped || c >= 0x80 || c == '"' || c == '<' || c == '>' || c == ' ' {
			out = append(out, '%', upperHex[c>>4], upperHex[c&15])
			continue
		}
		out = append(out, c)
	}
	return string(out)
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// pattern is one of a binding's paths; prefix says that a star stood at its end.
type pattern struct {
	path   Path
	prefix bool
}

func parsePattern(text string) (pattern, error) {
	text, prefix := strings.CutSuffix(text, "*")
	path, err := NormalPath(text)
	return pattern{path, prefix}, err
}

func (p pattern) matches(path Path) bool {
	if p.prefix {
		return strings.HasPrefix(path.Text, p.path.Text) && strings.HasPrefix(path.undone, p.path.undone)
	}
	return path.Text == p.path.Text && path.undone == p.path.undone
}
