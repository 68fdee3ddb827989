// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package vault is what a sandbox's credentials are for: which requests get which of them, and what
// must never come back. A vault is parsed once, is never changed afterwards, and lives in memory only.
package vault

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"slices"
	"strings"

	"casulo.dev/dataplane/internal/vault/leaf"
	"casulo.dev/dataplane/internal/vault/redact"
)

// Vault is one sandbox's, as the server told it last.
type Vault struct {
	Revision  int64
	Authority *leaf.Authority // signs for bound hosts
	Roots     *x509.CertPool  // by which their real certificates are checked; nil is the host's own
	Secrets   *redact.Matcher // every credential's value, in whatever dress

	bindings     []Binding
	placeholders []string
	secrets      []string
	retired      []string // secrets of before, which servers may still know
	caDigest     [sha256.Size]byte
}

// Place is a part of a request in which placeholders are replaced.
type Place string

// The places.
const (
	InPath   Place = "path"
	InQuery  Place = "query"
	InHeader Place = "header"
	InBody   Place = "body"
)

// Header is one that a binding sets.
type Header struct{ Name, Value string }

// Substitution replaces a placeholder by a value.
type Substitution struct {
	Placeholder, Value string
	Places             map[Place]bool
}

// Binding says which requests get which credentials.
type Binding struct {
	Name          string
	Headers       []Header
	Substitutions []Substitution
	RedactBodies  bool
	Lacks         string // a credential without which none of its requests is sent

	hosts   []string
	schemes []string
	ports   []uint16
	methods []string
	paths   []pattern
}

// Placeholders lists those of all bindings.
func (v *Vault) Placeholders() []string { return v.placeholders }

// Replaces tells whether a binding replaces placeholders in a place.
func (b *Binding) Replaces(where Place) bool {
	for i := range b.Substitutions {
		if b.Substitutions[i].Places[where] {
			return true
		}
	}
	return false
}

// secretsOf lists what must not come back: the values, and what the value of Basic encodes.
func secretsOf(wire *wireVault) []string {
	var found []string
	for _, value := range wire.Credentials {
		found = append(found, value)
	}
	for _, each := range wire.Bindings {
		if each.Auth.Type != "basic" {
			continue
		}
		pair, err := base64.StdEncoding.DecodeString(wire.Credentials[each.Auth.Credential])
		if err != nil || len(pair) == 0 {
			continue // it is sent and found as it is, or not there
		}
		found = append(found, string(pair))
		if _, password, both := strings.Cut(string(pair), ":"); both && len(password) >= leastPassword {
			found = append(found, password)
		}
	}
	return found
}

const mostRetired = 32

// retire takes over what an earlier vault held and this one does not.
func (v *Vault) retire(earlier *Vault) {
	if earlier == nil {
		return
	}
	for _, each := range slices.Concat(earlier.secrets, earlier.retired) {
		if !slices.Contains(v.secrets, each) && !slices.Contains(v.retired, each) && len(v.retired) < mostRetired {
			v.retired = append(v.retired, each)
		}
	}
}

// leastPassword is how long a password must be to be looked for alone; shorter ones would be found
// in every other word.
const leastPassword = 6

func sameAuthority(earlier *Vault, wire *wireVault) (*leaf.Authority, [sha256.Size]byte, error) {
	digest := sha256.Sum256(bytes.Join([][]byte{[]byte(wire.CA.Certificate), []byte(wire.CA.Key)}, []byte{0}))
	if earlier != nil && earlier.caDigest == digest {
		return earlier.Authority, digest, nil
	}
	made, err := leaf.New([]byte(wire.CA.Certificate), []byte(wire.CA.Key))
	return made, digest, err
}
