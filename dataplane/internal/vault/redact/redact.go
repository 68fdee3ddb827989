// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package redact finds secrets in what comes back, in every dress that is easily taken off again, and
// puts a fixed word in their place. What stands around them is not changed.
package redact

import "strings"

// Word stands where a secret was.
const Word = "[REDACTED]"

// shortest is the length from which a secret is looked for in encodings that mix its bytes with their
// neighbours'; a shorter one would be found by chance.
const shortest = 4

// Matcher knows the secrets of one vault. It is never changed, so any number of readers share it.
type Matcher struct {
	first       [256][]*pattern // by the byte with which a match can begin
	wide        []*pattern      // that can begin with a character beyond ASCII
	interesting [256]bool
	pairs       [1024]uint64 // the same of two bytes, which passes over nearly everything
	names       *Matcher
	widest      int // what the longest pattern can take when each character is escaped
}

// Compile makes a matcher.
func Compile(secrets []string) *Matcher {
	m, names := &Matcher{}, &Matcher{}
	seen := map[string]bool{"": true}
	for _, secret := range secrets {
		if seen[secret] {
			continue
		}
		seen[secret] = true
		m.add(textPattern(secret))
		if len(secret) < shortest {
			continue
		}
		for offset := range 3 {
			m.add(base64Pattern(secret, offset))
		}
		m.add(hexPattern(secret))
		for _, each := range utf16Patterns(secret) {
			m.add(each)
		}
		names.add(textPattern(strings.ToLower(secret)))
		names.add(hexPattern(secret))
	}
	m.names = names
	return m
}

const (
	perStep  = 32        // what one step can take: a character in HTML that was escaped again and again
	mostHeld = 256 << 10 // of a body at least; more only when it is the beginning of a very long secret
)

func (m *Matcher) add(p *pattern) {
	width := p.length
	if !p.bare() {
		width *= perStep
	}
	m.widest = min(mostHeld, max(m.widest, width))
	for b := range 256 {
		if p.has(0, byte(b)) {
			m.first[b] = append(m.first[b], p)
			m.interesting[b] = true
			if b == ' ' {
				m.interesting['+'] = true
			}
			m.addPairs(p, b)
		}
	}
	if p.wide(0) != 0 {
		m.wide = append(m.wide, p)
	}
	for _, b := range []byte(dresses) {
		m.interesting[b] = m.interesting[b] || b != '+'
		for second := range 256 {
			m.allowPair(int(b), second)
		}
	}
}

func (m *Matcher) addPairs(p *pattern, b int) {
	for second := range 256 {
		if p.length == 1 || p.has(1, byte(second)) || second == '\n' || second == '\r' || isDress(byte(second)) {
			m.allowPair(b, second)
		}
	}
}

func (m *Matcher) allowPair(first, second int) {
	m.pairs[first<<2|second>>6] |= 1 << (second & 63)
}

// begins tells whether something could begin at a place.
func (m *Matcher) begins(data []byte, at int) bool {
	first := data[at]
	if at+1 == len(data) || !m.interesting[first] {
		return m.interesting[first]
	}
	second := data[at+1]
	return m.pairs[int(first)<<2|int(second>>6)]&(1<<(second&63)) != 0
}

// Text is a text without secrets.
func (m *Matcher) Text(text string) string {
	data := []byte(text)
	if !m.holds(data) {
		return text
	}
	out, _, _ := m.scan(nil, data, len(data), 0, true, false)
	return string(out)
}

func (m *Matcher) holds(data []byte) bool {
	s := &search{data: data, final: true}
	for at := range data {
		if m.begins(data, at) {
			if end, _ := m.match(s, at); end > 0 {
				return true
			}
		}
	}
	return false
}

// InName tells whether the name of a header holds a secret, whose case headers do not keep.
func (m *Matcher) InName(name string) bool {
	return m.names.holds([]byte(strings.ToLower(name)))
}

// scan appends data without secrets to out, up to a place, beyond which it only looks on. Unless the
// data is final it stops before what may be the beginning of a secret that goes on after the data, and
// returns how much it has dealt with. The first covered bytes
// of the data belong to a secret for which the word was written before; so many of the rest still do.
func (m *Matcher) scan(out, data []byte, until, covered int, final, lines bool) (cleaned []byte, used, still int) {
	s := &search{data: data, final: final, lines: lines}
	done := covered
	for at := range until {
		if !m.begins(data, at) {
			continue
		}
		end, wait := m.match(s, at)
		if wait {
			return append(out, data[min(done, at):at]...), at, max(0, covered-at)
		}
		if end > 0 && at >= covered { // otherwise it overlaps with the one before, and has the same word
			out = append(append(out, data[done:at]...), Word...)
		}
		covered = max(covered, end)
		done = max(done, covered)
	}
	return append(out, data[min(done, until):until]...), until, max(0, covered-until)
}

// match is where the longest secret that begins at a place ends, 0 when there is none. It asks to
// wait when bytes that are not there yet could matter.
func (m *Matcher) match(s *search, at int) (end int, wait bool) {
	for _, p := range m.first[s.data[at]] {
		end = max(end, p.match(s, at))
	}
	if isDress(s.data[at]) {
		s.found = s.found[:0]
		s.undress(at)
		s.begun = append(s.begun[:0], s.found...) // what follows uses found too
		for _, worn := range s.begun {
			list := m.wide
			if worn.char < 0x80 || worn.isByte {
				list = m.first[byte(worn.char)]
			}
			for _, p := range list {
				end = max(end, p.match(s, at))
			}
		}
	}
	wait = s.wait
	s.wait = false
	return end, wait
}
