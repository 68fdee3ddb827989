// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bytes"
	"regexp"
	"strings"
)

// kind is what a client seems to speak, told by its first bytes.
type kind int

const (
	undecided kind = iota
	speaksTLS
	speaksHTTP
	speaksOther
)

// Servers take methods of any length; what is longer than this in front of the first space is none.
const longestMethod = 1024

// classify looks at the first bytes of a stream.
func classify(head []byte) kind {
	if len(head) == 0 {
		return undecided
	}
	if head[0] == recordHandshake {
		return speaksTLS // or nonsense, which will be found out
	}
	return classifyText(head)
}

// classifyText knows a request by its first line. Until that is complete, nothing is decided about
// what begins like one. Servers skip empty lines and blanks before it and take other blanks than the
// space inside it, so it is known in that dress too; whether it passes is decided elsewhere.
func classifyText(head []byte) kind {
	head = bytes.TrimLeft(head, blanks+"\r\n")
	if len(head) == 0 {
		return undecided
	}
	line, _, complete := bytes.Cut(head, []byte("\n"))
	word, rest := line, []byte(nil)
	if end := bytes.IndexAny(line, blanks+"\r"); end >= 0 {
		word, rest = line[:end], line[end:]
	}
	if len(word) == 0 || len(word) > longestMethod || strings.Trim(string(word), tokenChars) != "" {
		return speaksOther
	}
	switch {
	case aboutHTTP.Match(rest):
		return speaksHTTP
	case !complete:
		return undecided
	}
	return speaksOther
}

const blanks = " \t\v\f"

var aboutHTTP = regexp.MustCompile(`(?i)[\s\v]HTTP/[0-9]?`)
