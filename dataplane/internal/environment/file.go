// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package environment

import (
	"strings"

	"casulo.dev/dataplane/internal/api"
)

// Transferable reports whether a process can receive this pair: the kernel's form ends each at a
// NUL byte and splits it at the first equals sign.
func Transferable(name, value string) bool {
	return name != "" && !strings.ContainsAny(name, "=\x00") && !strings.Contains(value, "\x00")
}

// parseFile adds the entries of an env file to variables, one KEY=VALUE each; later ones win, and
// malformed lines are skipped. Values are bare (trimmed, expanded), in double quotes (five escapes,
// then expanded) or in single quotes (literal, over several lines when need be).
func parseFile(text string, variables Variables) {
	for text != "" {
		var name, value string
		var ok bool
		name, value, text, ok = nextEntry(text, variables)
		if ok {
			variables[name] = value
		}
	}
}

// nextEntry takes one entry off the text. Not ok means that the line was blank, a comment or malformed.
func nextEntry(text string, variables Variables) (name, value, rest string, ok bool) {
	line, afterLine, _ := strings.Cut(text, "\n")
	name, value, found := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	name = strings.TrimSpace(strings.TrimPrefix(name, "export "))
	if !found || !api.IsName(name) {
		return "", "", afterLine, false
	}
	value = strings.TrimLeft(value, " \t")
	if value == "" || (value[0] != '\'' && value[0] != '"') {
		return name, api.ExpandVariables(strings.TrimSpace(value), variables.Lookup), afterLine, true
	}
	// Quoted values may run past the line: take them from the whole text.
	quoted := text[len(line)-len(value):]
	value, rest, ok = unquote(quoted, variables)
	if !ok {
		return "", "", afterLine, false
	}
	return name, value, rest, true
}

// unquote reads a quoted value and requires that nothing but blanks follows on its last line.
func unquote(text string, variables Variables) (value, rest string, ok bool) {
	quote := text[0]
	end := closingQuote(text, quote)
	if end < 0 {
		return "", "", false
	}
	tail, rest, _ := strings.Cut(text[end+1:], "\n")
	if tail = strings.TrimSpace(tail); tail != "" && tail[0] != '#' {
		return "", "", false
	}
	if quote == '\'' {
		return text[1:end], rest, true
	}
	return expandQuoted(text[1:end], variables), rest, true
}

func closingQuote(text string, quote byte) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote:
			return i
		}
	}
	return -1
}

var escapes = map[byte]byte{'\\': '\\', '"': '"', 'n': '\n', 'r': '\r', 't': '\t'}

// expandQuoted resolves the escapes of a double-quoted value, then its variables.
func expandQuoted(text string, variables Variables) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			if plain, known := escapes[text[i+1]]; known {
				out.WriteByte(plain)
				i++
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return api.ExpandVariables(out.String(), variables.Lookup)
}
