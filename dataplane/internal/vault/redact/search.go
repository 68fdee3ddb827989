// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"bytes"

	"strconv"
	"unicode/utf16"
)

// search is one look at a piece of data.
type search struct {
	data  []byte
	final bool // nothing follows the data
	lines bool // whatever follows a line break is another text
	wait  bool // what follows the data could matter
	found []worn
	begun []worn
	spare [1]int
}

// worn is a character that was escaped, and where its escape ends.
type worn struct {
	char   rune
	end    int
	isByte bool // of a character, perhaps
}

const dresses = "%\\&+"

func isDress(b byte) bool { return b == '%' || b == '\\' || b == '&' || b == '+' }

const deepest = 4 // escapes of escapes

// undress adds to found what the escape at a place can stand for.
func (s *search) undress(at int) {
	switch s.data[at] {
	case '+':
		s.add(' ', at+1)
	case '%':
		s.percent(at + 1)
	case '\\':
		s.backslash(at)
	case '&':
		s.entity(at + 1)
	}
}

func (s *search) add(char rune, end int) { s.found = append(s.found, worn{char, end, false}) }

func (s *search) addByte(b byte, end int) { s.found = append(s.found, worn{rune(b), end, true}) }

// hex reads so many digits; when the data ends too early what follows could matter.
func (s *search) hex(at, digits int) (value int, ok bool) {
	for i := at; i < at+digits; i++ {
		if i >= len(s.data) {
			s.wait = s.wait || !s.final
			return 0, false
		}
		digit, isHex := hexDigit(s.data[i])
		if !isHex {
			return 0, false
		}
		value = value<<4 | digit
	}
	return value, true
}

func hexDigit(c byte) (int, bool) {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0'), true
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10, true
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10, true
	}
	return 0, false
}

// percent reads %41, %2541 and so on, and %u0041.
func (s *search) percent(at int) {
	for range deepest {
		if at < len(s.data) && s.data[at]|0x20 == 'u' {
			if value, ok := s.hex(at+1, 4); ok {
				s.add(rune(value), at+5)
			}
			return
		}
		value, ok := s.hex(at, 2)
		if !ok {
			return
		}
		s.addByte(byte(value), at+2)
		if value != '%' {
			return
		}
		at += 2
	}
}

var shortEscapes = map[byte]rune{'"': '"', '\'': '\'', '/': '/', '`': '`', '$': '$', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '0': 0}

// backslash reads \", \n, \x41, \u0041, \u{41} and \\, with more backslashes where texts in texts
// are escaped again.
func (s *search) backslash(at int) {
	run := 0
	for at+run < len(s.data) && s.data[at+run] == '\\' && run < 1<<deepest {
		run++
	}
	for width := 2; width <= run; width *= 2 {
		s.add('\\', at+width)
	}
	next := at + run
	if next >= len(s.data) {
		s.wait = s.wait || !s.final
		return
	}
	switch c := s.data[next]; c {
	case 'x', 'X':
		if value, ok := s.hex(next+1, 2); ok {
			s.addByte(byte(value), next+3)
			s.add(rune(value), next+3)
		}
	case 'u', 'U':
		s.unicode(next + 1)
	default:
		if char, known := shortEscapes[c]; known {
			s.add(char, next+1)
		}
	}
}

func (s *search) unicode(at int) {
	if at < len(s.data) && s.data[at] == '{' {
		s.number(at+1, 16, '}')
		return
	}
	value, ok := s.hex(at, 4)
	if !ok {
		return
	}
	char, end := rune(value), at+4
	if utf16.IsSurrogate(char) {
		next := end
		for next < len(s.data) && s.data[next] == '\\' && next < end+1<<deepest {
			next++
		}
		if next >= len(s.data) {
			s.wait = s.wait || !s.final
			return
		}
		low, ok := s.hex(next+1, 4)
		if s.data[next]|0x20 != 'u' || !ok {
			return
		}
		char, end = utf16.DecodeRune(char, rune(low)), next+5
	}
	s.add(char, end)
}

const mostDigits = 8

// number reads digits up to a closing character.
func (s *search) number(at, base int, closing byte) {
	for i := at; i <= at+mostDigits; i++ {
		if i >= len(s.data) {
			s.wait = s.wait || !s.final
			return
		}
		if s.data[i] == closing {
			if value, err := strconv.ParseUint(string(s.data[at:i]), base, 31); err == nil {
				s.add(rune(value), i+1)
			}
			return
		}
		if _, ok := hexDigit(s.data[i]); !ok {
			return
		}
	}
}

const longestEntity = 8

// entity reads &#65; &#x41; &quot; and their like, and those of which the & was escaped.
func (s *search) entity(at int) {
	for range deepest {
		switch {
		case at >= len(s.data):
			s.wait = s.wait || !s.final
			return
		case s.data[at] == '#':
			if at+1 < len(s.data) && s.data[at+1]|0x20 == 'x' {
				s.number(at+2, 16, ';')
			} else {
				s.number(at+1, 10, ';')
			}
			return
		}
		end := bytes.IndexByte(s.data[at:min(len(s.data), at+longestEntity+1)], ';')
		if end < 0 {
			s.wait = s.wait || !s.final && len(s.data) <= at+longestEntity && isWord(s.data[at:])
			return
		}
		name := string(s.data[at : at+end])
		at += end + 1
		if char, known := entities[name]; known {
			s.add(char, at)
		}
		if name != "amp" {
			return
		}
	}
}

func isWord(text []byte) bool {
	return !bytes.ContainsFunc(text, func(c rune) bool { return (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') })
}

var entities = map[string]rune{
	"amp": '&', "AMP": '&', "lt": '<', "LT": '<', "gt": '>', "GT": '>', "quot": '"', "QUOT": '"', "apos": '\'',
	"Tab": '\t', "NewLine": '\n', "excl": '!', "num": '#', "dollar": '$', "percnt": '%', "lpar": '(', "rpar": ')',
	"ast": '*', "midast": '*', "plus": '+', "comma": ',', "hyphen": '-', "dash": '-', "period": '.', "sol": '/', "colon": ':',
	"semi": ';', "equals": '=', "quest": '?', "commat": '@', "lsqb": '[', "lbrack": '[', "bsol": '\\', "rsqb": ']',
	"rbrack": ']', "Hat": '^', "lowbar": '_', "UnderBar": '_', "grave": '`', "lcub": '{', "lbrace": '{', "verbar": '|',
	"vert": '|', "VerticalLine": '|', "rcub": '}', "rbrace": '}', "nbsp": 0xa0,
}

// breaks lists the places after a line break that begins here, raw or escaped.
func (s *search) breaks(at int) []int {
	var past []int
	if at >= len(s.data) || s.data[at] != '\n' && s.data[at] != '\r' && s.data[at] != '\\' && s.data[at] != '%' {
		return nil
	}
	for _, one := range lineBreaks {
		if s.lines && one[0] != '\\' {
			continue
		}
		rest := s.data[at:min(len(s.data), at+len(one))]
		switch {
		case len(rest) == 0:
			return past
		case string(rest) == one:
			past = append(past, at+len(one))
		case !s.final && len(rest) < len(one) && one[:len(rest)] == string(rest):
			s.wait = true
		}
	}
	return past
}

var lineBreaks = []string{"\n", "\r\n", "\\n", "\\r\\n", "%0A", "%0D%0A", "%0a", "%0d%0a"}
