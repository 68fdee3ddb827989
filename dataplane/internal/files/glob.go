// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A search pattern knows `*` and `?`, classes (`[a-z]`, `[!a]`, `[^a]`), `\` before a literal character, `{a,b}`
// alternatives and, as a whole path element, `**` for any number of directories. Without a slash it is tested against
// the base name, with one against the path below the search root. Names are compared byte for byte except where a
// pattern element stands for one character, which is one UTF-8 character or one invalid byte.
const (
	maxPatternLength = 1024
	maxAlternatives  = 256
)

// Glob is a checked pattern.
type Glob struct {
	alternatives [][]string // each a list of path elements
	byPath       bool
}

// CompileGlob parses a pattern.
func CompileGlob(pattern string) (*Glob, error) {
	if len(pattern) > maxPatternLength {
		return nil, fmt.Errorf("pattern is longer than %d bytes", maxPatternLength)
	}
	texts, err := expandBraces(pattern)
	if err != nil {
		return nil, err
	}
	glob := &Glob{}
	for _, text := range texts {
		elements := strings.Split(strings.TrimPrefix(text, "/"), "/")
		for _, element := range elements {
			if err := checkElement(element); err != nil {
				return nil, err
			}
		}
		glob.byPath = glob.byPath || len(elements) > 1
		glob.alternatives = append(glob.alternatives, elements)
	}
	return glob, nil
}

// Match tests a path relative to the search root (elements joined by single slashes).
func (g *Glob) Match(relative string) bool {
	base := relative[strings.LastIndexByte(relative, '/')+1:]
	for _, elements := range g.alternatives {
		if len(elements) == 1 {
			if elements[0] == "**" || matchElement(elements[0], base) {
				return true
			}
		} else if matchPath(elements, strings.Split(relative, "/")) {
			return true
		}
	}
	return false
}

// matchPath compares element by element; reachable[j] says whether the names before j can be consumed so far, which
// keeps the work at len(pattern)*len(path) whatever the number of `**`.
func matchPath(pattern, names []string) bool {
	reachable := make([]bool, len(names)+1)
	reachable[0] = true
	for _, element := range pattern {
		next := make([]bool, len(names)+1)
		for j, ok := range reachable {
			if element == "**" {
				next[j] = ok || (j > 0 && next[j-1])
			} else if ok && j < len(names) && matchElement(element, names[j]) {
				next[j+1] = true
			}
		}
		reachable = next
	}
	return reachable[len(names)]
}

// matchElement matches one path element. On a mismatch it goes back to the latest `*` only, which is enough because
// an earlier star can give nothing that the latest one cannot; so the work is at most len(pattern)*len(name).
func matchElement(pattern, name string) bool {
	p, n := 0, 0
	starP, starN := -1, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			starP, starN = p, n
			p++
			continue
		}
		if p < len(pattern) {
			if nextP, nextN, ok := matchOne(pattern, p, name, n); ok {
				p, n = nextP, nextN
				continue
			}
		}
		if starP < 0 {
			return false
		}
		_, size := utf8.DecodeRuneInString(name[starN:])
		starN += size
		p, n = starP+1, starN
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func matchOne(pattern string, p int, name string, n int) (nextP, nextN int, ok bool) {
	switch pattern[p] {
	case '?':
		_, size := utf8.DecodeRuneInString(name[n:])
		return p + 1, n + size, true
	case '[':
		char, size := utf8.DecodeRuneInString(name[n:])
		end, hit, err := matchClass(pattern, p, char)
		return end, n + size, err == nil && hit
	case '\\':
		p++
	}
	return p + 1, n + 1, pattern[p] == name[n]
}

var errBadClass = errors.New("pattern has an unfinished or empty [class]")

// matchClass reads the class that starts at pattern[p] and returns the index behind it.
func matchClass(pattern string, p int, char rune) (end int, hit bool, err error) {
	p++
	negated := p < len(pattern) && (pattern[p] == '!' || pattern[p] == '^')
	if negated {
		p++
	}
	for first := true; ; first = false {
		if p >= len(pattern) {
			return 0, false, errBadClass
		}
		if pattern[p] == ']' && !first {
			return p + 1, hit != negated, nil
		}
		low, next := classChar(pattern, p)
		high := low
		if next+1 < len(pattern) && pattern[next] == '-' && pattern[next+1] != ']' {
			high, next = classChar(pattern, next+1)
		}
		hit = hit || (low <= char && char <= high)
		p = next
	}
}

func classChar(pattern string, p int) (char rune, next int) {
	if pattern[p] == '\\' && p+1 < len(pattern) {
		p++
	}
	char, size := utf8.DecodeRuneInString(pattern[p:])
	return char, p + size
}

func checkElement(element string) error {
	for p := 0; p < len(element); p++ {
		switch element[p] {
		case '\\':
			p++
			if p == len(element) {
				return errors.New(`pattern ends in a lone \`)
			}
		case '[':
			end, _, err := matchClass(element, p, 0)
			if err != nil {
				return err
			}
			p = end - 1
		}
	}
	return nil
}
