// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"strings"
	"unicode/utf8"
)

// A file name is any bytes but '/' and NUL; JSON text is Unicode. Bytes that are not part of valid UTF-8 travel as
// one private-use character each: byte 0xNN becomes U+10FENN (only 0x80-0xFF can occur). These are ordinary
// characters for every JSON parser and URL encoder, which lone surrogates are not: HTTP clients refuse to send those.
// A name that really contains one of the 128 characters is itself sent byte by byte, so that no two names share one
// spelling and every spelling leads back to its name.
const (
	escapeBase  = 0x10FE00
	escapeFirst = escapeBase + 0x80
	escapeLast  = escapeBase + 0xFF
)

func isEscape(r rune) bool { return r >= escapeFirst && r <= escapeLast }

// EscapeName returns the Unicode spelling of a file name or path.
func EscapeName(name string) string {
	if !needsEscape(name) {
		return name
	}
	var out strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if (r == utf8.RuneError && size == 1) || isEscape(r) {
			for _, b := range []byte(name[i : i+size]) {
				out.WriteRune(escapeBase + rune(b))
			}
		} else {
			out.WriteString(name[i : i+size])
		}
		i += size
	}
	return out.String()
}

func needsEscape(name string) bool {
	return !utf8.ValidString(name) || strings.ContainsFunc(name, isEscape)
}

// UnescapeName is the inverse of EscapeName. Raw bytes, as a URL can carry them, pass unchanged.
func UnescapeName(text string) string {
	if !strings.ContainsFunc(text, isEscape) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if isEscape(r) {
			out = append(out, byte(r-escapeBase))
		} else {
			out = append(out, text[i:i+size]...)
		}
		i += size
	}
	return string(out)
}

// spelled is how a path from a request is named in the answer: as it came, unless it came as raw bytes.
func spelled(text string) string { return EscapeName(UnescapeName(text)) }
