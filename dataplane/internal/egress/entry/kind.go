// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bytes"
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

const longestMethod = 20

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
// what begins like one.
func classifyText(head []byte) kind {
	line, _, complete := bytes.Cut(head, []byte("\n"))
	word, _, spaced := bytes.Cut(line, []byte(" "))
	if len(word) == 0 || len(word) > longestMethod || strings.Trim(string(word), methodChars) != "" {
		return speaksOther
	}
	switch {
	case !complete:
		return undecided
	case spaced && bytes.Contains(line, []byte(" HTTP/")):
		return speaksHTTP
	}
	return speaksOther
}

const methodChars = "-_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
