// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package redact finds secrets in what comes back, in every dress that is easily taken off again, and
// puts a fixed word in their place.
package redact

import "strings"

// Word stands where a secret was.
const Word = "[REDACTED]"

// Matcher knows the secrets of one vault.
type Matcher struct{ secrets []string }

// Compile makes a matcher; it may be used by any number of readers at once.
func Compile(secrets []string) *Matcher { return &Matcher{secrets} }

// Text is a text without secrets.
func (m *Matcher) Text(text string) string {
	for _, each := range m.secrets {
		text = strings.ReplaceAll(text, each, Word)
	}
	return text
}

// InName tells whether the name of a header holds a secret, whose case headers do not keep.
func (m *Matcher) InName(name string) bool {
	for _, each := range m.secrets {
		if strings.Contains(strings.ToLower(name), strings.ToLower(each)) {
			return true
		}
	}
	return false
}
