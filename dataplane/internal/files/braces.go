// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"fmt"
)

// expandBraces turns `a{b,c}d` into `abd`, `acd`. Braces without a comma, or without a partner, are literal. The work
// list is bounded, so that no short pattern can grow without end.
func expandBraces(pattern string) ([]string, error) {
	pending, done := []string{pattern}, []string(nil)
	for len(pending) > 0 {
		text := pending[0]
		pending = pending[1:]
		group, ok := firstBraces(text)
		if !ok {
			done = append(done, text)
		} else {
			for _, part := range group.parts {
				pending = append(pending, text[:group.open]+part+text[group.close+1:])
			}
		}
		if len(pending)+len(done) > maxAlternatives {
			return nil, fmt.Errorf("pattern has more than %d alternatives", maxAlternatives)
		}
		if longest(pending) > 2*maxPatternLength {
			return nil, errors.New("pattern is too long")
		}
	}
	return done, nil
}

func longest(texts []string) int {
	most := 0
	for _, text := range texts {
		most = max(most, len(text))
	}
	return most
}

type braces struct {
	open, close int
	parts       []string
}

func firstBraces(text string) (braces, bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '[':
			i = skipClass(text, i)
		case '{':
			if group, ok := readBraces(text, i); ok {
				return group, true
			}
		}
	}
	return braces{}, false
}

func readBraces(text string, open int) (braces, bool) {
	group := braces{open: open}
	depth, start := 0, open+1
	for i := open; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '[':
			i = skipClass(text, i)
		case '{':
			depth++
		case ',':
			if depth == 1 {
				group.parts = append(group.parts, text[start:i])
				start = i + 1
			}
		case '}':
			if depth--; depth == 0 {
				group.close = i
				group.parts = append(group.parts, text[start:i])
				return group, len(group.parts) > 1
			}
		}
	}
	return braces{}, false
}

// skipClass returns the index of the bracket that ends the class, or the given one when it does not end.
func skipClass(text string, open int) int {
	if end, _, err := matchClass(text, open, 0); err == nil {
		return end - 1
	}
	return open
}
