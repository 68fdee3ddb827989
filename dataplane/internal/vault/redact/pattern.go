// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"sync"
	"unicode/utf8"
)

// pattern is a secret in one encoding, as a row of steps. What it was encoded to may itself be
// escaped, each character in its own way.
type pattern struct {
	steps  []*step
	wide   map[int]rune // characters beyond ASCII, by the step of their first byte
	broken bool         // line breaks may stand between its characters
	bare   bool         // its bytes are not escaped
}

// step is one byte of a pattern: several are possible where bits belong to a neighbour, or where
// alphabets differ.
type step [4]uint64

func (s *step) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }

func (s *step) allow(b byte) { s[b>>6] |= 1 << (b & 63) }

// known are all steps that any pattern has; there are few different ones.
var known sync.Map

func (s step) shared() *step {
	if found, ok := known.Load(s); ok {
		return found.(*step)
	}
	found, _ := known.LoadOrStore(s, &s)
	return found.(*step)
}

func exactly(bytes ...byte) *step {
	var s step
	for _, b := range bytes {
		s.allow(b)
	}
	return s.shared()
}

func textPattern(secret string) *pattern {
	p := &pattern{}
	if !utf8.ValidString(secret) {
		for i := range len(secret) {
			p.steps = append(p.steps, exactly(secret[i]))
		}
		return p
	}
	for _, char := range secret {
		encoded := utf8.AppendRune(nil, char)
		for i, b := range encoded {
			if i == 0 && len(encoded) > 1 {
				if p.wide == nil {
					p.wide = map[int]rune{}
				}
				p.wide[len(p.steps)] = char
			}
			p.steps = append(p.steps, exactly(b))
		}
	}
	return p
}

const base64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// base64Pattern is a secret that begins so many bytes after a whole group. Characters that it shares
// with its neighbours belong to it, with every value that the neighbours can give them.
func base64Pattern(secret string, offset int) *pattern {
	p := &pattern{broken: true}
	begin, end := 8*offset, 8*(offset+len(secret))
	for char := begin / 6; 6*char < end; char++ {
		var mask, value byte
		for bit := 6 * char; bit < 6*char+6; bit++ {
			mask, value = mask<<1, value<<1
			if bit >= begin && bit < end {
				mask |= 1
				value |= secret[(bit-begin)/8] >> (7 - (bit-begin)%8) & 1
			}
		}
		var one step
		for candidate := range byte(64) {
			if candidate&mask == value {
				allowBase64(&one, candidate)
			}
		}
		p.steps = append(p.steps, one.shared())
	}
	return p
}

func allowBase64(s *step, value byte) {
	s.allow(base64Alphabet[value])
	switch value {
	case 62:
		s.allow('-')
	case 63:
		s.allow('_')
	}
}

func hexPattern(secret string) *pattern {
	p := &pattern{}
	const lower, upper = "0123456789abcdef", "0123456789ABCDEF"
	for i := range len(secret) {
		for _, half := range []byte{secret[i] >> 4, secret[i] & 15} {
			p.steps = append(p.steps, exactly(lower[half], upper[half]))
		}
	}
	return p
}

// utf16Patterns are both byte orders; what lies beyond the basic plane is left to the other patterns.
func utf16Patterns(secret string) []*pattern {
	little, big := &pattern{bare: true}, &pattern{bare: true}
	for _, char := range secret {
		if char > 0xffff {
			return nil
		}
		high, low := exactly(byte(char>>8)), exactly(byte(char))
		little.steps = append(little.steps, low, high)
		big.steps = append(big.steps, high, low)
	}
	return []*pattern{little, big}
}

const (
	furthest = 5  // steps that one escape can take, and one more
	mostWays = 64 // of reading the data at one step; only a secret of escapes alone has as many
)

// match is where the pattern ends if it begins at a place, 0 if it does not.
func (p *pattern) match(s *search, at int) int {
	for i := range p.steps {
		if at >= len(s.data) {
			s.wait = s.wait || !s.final
			return 0
		}
		b := s.data[at]
		if isDress(b) && !p.bare || p.broken && (b == '\n' || b == '\r') {
			return p.matchEscaped(s, i, at)
		}
		if !p.steps[i].has(b) {
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
	for i := first; i < len(p.steps); i++ {
		now := ahead[i%furthest]
		ahead[i%furthest] = nil
		if open -= len(now); len(now) == 0 && open == 0 {
			return 0
		}
		for _, from := range now {
			open += p.advance(s, i, from, &ahead)
			if p.broken && i > 0 {
				for _, past := range s.breaks(from) {
					open += p.advance(s, i, past, &ahead)
				}
			}
		}
	}
	end := 0
	for _, each := range ahead[len(p.steps)%furthest] {
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
	want := p.steps[i]
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
	if want.has(s.data[from]) {
		add(1, from+1)
	}
	if p.bare || !isDress(s.data[from]) {
		return added
	}
	s.found = s.found[:0]
	s.undress(from)
	for _, worn := range s.found {
		switch {
		case worn.isByte || worn.char < 0x80:
			if want.has(byte(worn.char)) {
				add(1, worn.end)
			}
		case worn.char == p.wide[i]:
			add(utf8.RuneLen(worn.char), worn.end)
		}
	}
	return added
}
