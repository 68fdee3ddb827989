// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"path"
	"strings"
)

// Lookup finds a variable of the environment that a path is expanded against.
type Lookup func(name string) (value string, found bool)

// ExpandPath makes a path of a request absolute: a leading ~ becomes HOME, $NAME and ${NAME} become
// the variable's value (nothing when unset), and a relative result is taken from base. The result
// is lexically clean; symlinks are left alone. An empty path stays empty.
func ExpandPath(p, base string, lookup Lookup) string {
	if p == "" {
		return ""
	}
	if p == "~" || strings.HasPrefix(p, "~/") {
		if home, found := lookup("HOME"); found && home != "" {
			p = home + p[1:]
		}
	}
	p = ExpandVariables(p, lookup)
	if !path.IsAbs(p) {
		p = path.Join(base, p)
	}
	return path.Clean(p)
}

// ExpandVariables replaces $NAME and ${NAME}. A dollar sign that starts no name stays as it is.
func ExpandVariables(text string, lookup Lookup) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for text != "" {
		literal, name, rest := CutVariable(text)
		out.WriteString(literal)
		if name != "" {
			value, _ := lookup(name)
			out.WriteString(value)
		}
		text = rest
	}
	return out.String()
}

// CutVariable splits text around its first reference to a variable. Without one, literal is all of it.
func CutVariable(text string) (literal, name, rest string) {
	for i := 0; i < len(text); i++ {
		if name, width := variableAt(text[i:]); width > 0 {
			return text[:i], name, text[i+width:]
		}
	}
	return text, "", ""
}

// variableAt recognises a reference at the start of text and says how many bytes it takes.
func variableAt(text string) (name string, width int) {
	if len(text) < 2 || text[0] != '$' {
		return "", 0
	}
	if text[1] != '{' {
		n := nameLength(text[1:])
		if n == 0 {
			return "", 0
		}
		return text[1 : 1+n], 1 + n
	}
	n := nameLength(text[2:])
	if n == 0 || 2+n >= len(text) || text[2+n] != '}' {
		return "", 0
	}
	return text[2 : 2+n], 3 + n
}

// nameLength counts the bytes at the start of text that form a variable's name.
func nameLength(text string) int {
	for i := 0; i < len(text); i++ {
		if !isNameByte(text[i], i == 0) {
			return i
		}
	}
	return len(text)
}

func isNameByte(c byte, first bool) bool {
	letter := c == '_' || (c|0x20 >= 'a' && c|0x20 <= 'z')
	return letter || (!first && c >= '0' && c <= '9')
}

// IsName reports whether text can name an environment variable.
func IsName(text string) bool {
	return text != "" && nameLength(text) == len(text)
}
