// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"strings"
	"unicode/utf8"
)

// pattern is a secret in one encoding, as a row of steps of one byte each. What it was encoded to may
// itself be escaped, each character in its own way. Nothing is worked out beforehand, since a secret
// may be long and has many encodings.
type pattern struct {
	secret string
	kind   kind
	offset int  // bytes after a whole group of base64
	chars  bool // the secret is text, so that an escape may stand for a character of several bytes
	length int
}

type kind int

const (
	asText kind = iota
	asBase64
	asHex
	asUTF16Little
	asUTF16Big
)

func textPattern(secret string) *pattern {
	return &pattern{secret: secret, length: len(secret), chars: utf8.ValidString(secret)}
}

// base64Pattern is a secret that begins so many bytes after a whole group. Characters that it shares
// with its neighbours belong to it, with every value that the neighbours can give them.
func base64Pattern(secret string, offset int) *pattern {
	first, end := 8*offset/6, (8*(offset+len(secret))+5)/6
	return &pattern{secret: secret, kind: asBase64, offset: offset, length: end - first}
}

func hexPattern(secret string) *pattern {
	return &pattern{secret: secret, kind: asHex, length: 2 * len(secret)}
}

// utf16Patterns are both byte orders; what lies beyond the basic plane is left to the other patterns.
func utf16Patterns(secret string) []*pattern {
	if !utf8.ValidString(secret) || strings.ContainsFunc(secret, func(c rune) bool { return c > 0xffff }) {
		return nil
	}
	units := make([]byte, 0, 2*len(secret)) // high and low byte of each
	for _, char := range secret {
		units = append(units, byte(char>>8), byte(char))
	}
	text := string(units)
	return []*pattern{{secret: text, kind: asUTF16Little, length: len(text)}, {secret: text, kind: asUTF16Big, length: len(text)}}
}

// broken tells whether line breaks may stand between the characters.
func (p *pattern) broken() bool { return p.kind == asBase64 }

// bare tells whether the bytes are never escaped.
func (p *pattern) bare() bool { return p.kind == asUTF16Little || p.kind == asUTF16Big }

// has tells whether a byte can stand at a step: several can where bits belong to a neighbour, or where
// alphabets differ.
func (p *pattern) has(step int, b byte) bool {
	switch p.kind {
	case asBase64:
		return p.hasBase64(step, b)
	case asHex:
		half := p.secret[step/2] >> 4
		if step%2 == 1 {
			half = p.secret[step/2] & 15
		}
		value, isHex := hexDigit(b)
		return isHex && value == int(half)
	case asUTF16Little:
		return p.secret[step^1] == b
	}
	return p.secret[step] == b
}

func (p *pattern) hasBase64(step int, b byte) bool {
	value := base64Values[b]
	if value < 0 {
		return false
	}
	first := 6*(8*p.offset/6+step) - 8*p.offset // the character's first bit, counted from the secret's
	for bit := range 6 {
		at := first + bit
		if at < 0 || at >= 8*len(p.secret) {
			continue
		}
		if p.secret[at/8]>>(7-at%8)&1 != byte(value)>>(5-bit)&1 {
			return false
		}
	}
	return true
}

// wide is the character beyond ASCII that begins at a step; 0 is none.
func (p *pattern) wide(step int) rune {
	if !p.chars || p.kind != asText || p.secret[step] < utf8.RuneSelf {
		return 0
	}
	char, _ := utf8.DecodeRuneInString(p.secret[step:])
	if char == utf8.RuneError {
		return 0 // the middle of one
	}
	return char
}

const base64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

var base64Values = func() (values [256]int8) {
	for i := range values {
		values[i] = int8(strings.IndexByte(base64Alphabet, byte(i)))
	}
	values['-'], values['_'] = 62, 63
	return values
}()

const (
	furthest = 5  // steps that one escape can take, and one more
	mostWays = 64 // of reading the data at one step; only a secret of escapes alone has as many
)

// match is where the pattern ends if it begins at a place, 0 if it does not.
func (p *pattern) match(s *search, at int) int {
	for i := range p.length {
		if at >= len(s.data) {
			s.wait = s.wait || !s.final
			return 0
		}
		b := s.data[at]
		if isDress(b) && !p.bare() || p.broken() && (b == '\n' || b == '\r') {
			return p.matchEscaped(s, i, at)
		}
		if !p.has(i, b) {
			return 0
		}
		at++
	}
	return at
}

// matchEscaped goes on from a step with all ways of reading the data side by side.
func (p *pattern) matchEscaped(s *search, first, at int) int {
	var ahead [furthest][]int
	ahead[first%furthest] = append(s.spare[:0], at)
	open := 1
	for i := first; i < p.length; i++ {
		now := ahead[i%furthest]
		ahead[i%furthest] = nil
		if open -= len(now); len(now) == 0 && open == 0 {
			return 0
		}
		for _, from := range now {
			open += p.advance(s, i, from, &ahead)
			if p.broken() && i > 0 {
				for _, past := range s.breaks(from) {
					open += p.advance(s, i, past, &ahead)
				}
			}
		}
	}
	end := 0
	for _, each := range ahead[p.length%furthest] {
		end = max(end, each)
	}
	return end
}

// advance notes where one step can lead from a place, and returns how many ways are new.
func (p *pattern) advance(s *search, i, from int, ahead *[furthest][]int) (added int) {
	if from >= len(s.data) {
		s.wait = s.wait || !s.final
		return 0
	}
	add := func(taken, to int) {
		slot := &ahead[(i+taken)%furthest]
		for _, known := range *slot {
			if known == to {
				return
			}
		}
		if len(*slot) < mostWays {
			*slot = append(*slot, to)
			added++
		}
	}
	if p.has(i, s.data[from]) {
		add(1, from+1)
	}
	if p.bare() || !isDress(s.data[from]) {
		return added
	}
	s.found = s.found[:0]
	s.undress(from)
	for _, worn := range s.found {
		switch {
		case worn.isByte || worn.char < 0x80:
			if p.has(i, byte(worn.char)) {
				add(1, worn.end)
			}
		case worn.char == p.wide(i):
			add(utf8.RuneLen(worn.char), worn.end)
		}
	}
	return added
}
