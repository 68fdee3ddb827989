// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import (
	"fmt"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253
	maxLabel = 63
)

// Canonical is the form in which names are compared: ASCII, lower case, without the final dot.
func Canonical(name string) (string, error) {
	name = strings.TrimSuffix(name, ".")
	ascii := name
	if !isASCII(name) {
		converted, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("%q is no host name: %w", name, err)
		}
		ascii = converted
	}
	ascii = strings.ToLower(ascii)
	if len(ascii) > maxName {
		return "", fmt.Errorf("%q is longer than a host name can be", name)
	}
	labels := strings.Split(ascii, ".")
	for _, label := range labels {
		if !validLabel(label) {
			return "", fmt.Errorf("%q is no host name", name)
		}
	}
	if isNumber(labels[len(labels)-1]) {
		return "", fmt.Errorf("%q is neither an address nor a host name", name)
	}
	return ascii, nil
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

func validLabel(label string) bool {
	if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isNumber(label string) bool {
	return strings.Trim(label, "0123456789") == "" || strings.HasPrefix(label, "0x")
}

// matchesName tells whether a canonical name is the rule's, or below it for a wildcard.
func (r *Rule) matchesName(name string) bool {
	if r.Name == "" || name == "" {
		return false
	}
	if !r.Wildcard {
		return name == r.Name
	}
	return len(name) > len(r.Name)+1 && strings.HasSuffix(name, r.Name) && name[len(name)-len(r.Name)-1] == '.'
}
