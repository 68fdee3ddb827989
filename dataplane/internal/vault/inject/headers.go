// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package inject puts credentials into requests: headers that a binding sets, and values in the place
// of placeholders.
package inject

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"casulo.dev/dataplane/internal/vault"
)

// Headers sets those of a binding. Whatever the client sent under such a name is gone afterwards, in
// every spelling that a server could take for the same, and from the trailers too.
func Headers(r *http.Request, b *vault.Binding) {
	for _, each := range b.Headers {
		removeAlike(r.Header, each.Name)
		removeAlike(r.Trailer, each.Name)
	}
	for _, each := range b.Headers {
		r.Header[textproto.CanonicalMIMEHeaderKey(each.Name)] = []string{each.Value}
	}
}

// Overridden names the header, if any, by which a request asks some servers to be taken for another
// one than that for which its credentials were chosen.
func Overridden(headers http.Header, allowed func(method string) bool) string {
	for name, values := range headers {
		switch alike(name) {
		case "x-http-method-override", "x-http-method", "x-method-override":
			if slices.ContainsFunc(values, func(v string) bool { return !allowed(strings.ToUpper(strings.TrimSpace(v))) }) {
				return name
			}
		case "x-original-url", "x-rewrite-url", "x-original-uri":
			return name
		}
	}
	return ""
}

func removeAlike(headers http.Header, name string) {
	for each := range headers {
		if alike(each) == alike(name) {
			delete(headers, each)
		}
	}
}

// alike is how gateways and frameworks spell a header's name when they put it into a variable.
func alike(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }
