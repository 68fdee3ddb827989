// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package vault

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault/leaf"
	"casulo.dev/dataplane/internal/vault/redact"
)

type wireVault struct {
	Revision    int64             `json:"revision"`
	CA          wireCA            `json:"ca"`
	Credentials map[string]string `json:"credentials"`
	Unavailable []string          `json:"unavailable"` // credentials whose values cannot be read where they come from
	Bindings    []wireBinding     `json:"bindings"`
	Roots       string            `json:"upstreamRoots"`
}

type wireCA struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type wireBinding struct {
	Name  string `json:"name"`
	Match struct {
		Hosts   []string `json:"hosts"`
		Schemes []string `json:"schemes"`
		Ports   []uint16 `json:"ports"`
		Methods []string `json:"methods"`
		Paths   []string `json:"paths"`
	} `json:"match"`
	Auth         wireAuth `json:"auth"`
	RedactBodies bool     `json:"redactBodies"`
}

type wireAuth struct {
	Type          string             `json:"type"`
	Credential    string             `json:"credential"`
	Name          string             `json:"name"`
	Headers       []wireHeader       `json:"headers"`
	Substitutions []wireSubstitution `json:"substitutions"`
}

type wireHeader struct {
	Name       string `json:"name"`
	Credential string `json:"credential"`
}

type wireSubstitution struct {
	Credential  string  `json:"credential"`
	Placeholder string  `json:"placeholder"`
	In          []Place `json:"in"`
}

// Parse reads what the server tells; what did not change of an earlier vault is kept. No error tells
// anything of a value.
func Parse(data []byte, earlier *Vault) (*Vault, error) {
	wire := &wireVault{}
	if err := json.Unmarshal(data, wire); err != nil {
		return nil, unreadable(err)
	}
	v := &Vault{Revision: wire.Revision}
	var err error
	if v.Authority, v.caDigest, err = sameAuthority(earlier, wire); err != nil {
		return nil, err
	}
	if v.Roots, err = leaf.Roots(wire.Roots); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, each := range wire.Bindings {
		bound, err := each.parse(wire)
		if err != nil {
			return nil, fmt.Errorf("binding %q: %w", each.Name, err)
		}
		v.bindings = append(v.bindings, *bound)
		for _, s := range bound.Substitutions {
			seen[s.Placeholder] = true
		}
	}
	v.placeholders = slices.Sorted(maps.Keys(seen))
	v.secrets = secretsOf(wire)
	v.retire(earlier)
	v.Secrets = redact.Compile(slices.Concat(v.secrets, v.retired))
	return v, nil
}

// unreadable tells where a document is wrong without repeating any of it.
func unreadable(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("the vault's member %q is not of the type %s", kind.Field, kind.Type)
	}
	return errors.New("the vault is no JSON of the agreed form")
}

func (w *wireBinding) parse(all *wireVault) (*Binding, error) {
	b := &Binding{Name: w.Name, RedactBodies: w.RedactBodies, schemes: w.Match.Schemes,
		ports: w.Match.Ports, methods: w.Match.Methods}
	for _, host := range w.Match.Hosts {
		name, below := strings.CutPrefix(host, "*.")
		canonical, err := policy.Canonical(name)
		if err != nil {
			return nil, err
		}
		if below {
			canonical = "*." + canonical
		}
		b.hosts = append(b.hosts, canonical)
	}
	for _, text := range w.Match.Paths {
		parsed, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		b.paths = append(b.paths, parsed)
	}
	if err := b.setHeaders(&w.Auth, all); err != nil {
		return nil, err
	}
	return b, b.setSubstitutions(&w.Auth, all)
}

func (b *Binding) setHeaders(auth *wireAuth, all *wireVault) error {
	switch auth.Type {
	case "bearer":
		return b.addHeader("Authorization", "Bearer ", auth.Credential, all)
	case "basic":
		return b.addHeader("Authorization", "Basic ", auth.Credential, all)
	case "apiKey":
		return b.addHeader(auth.Name, "", auth.Credential, all)
	case "customHeaders":
		for _, each := range auth.Headers {
			if err := b.addHeader(each.Name, "", each.Credential, all); err != nil {
				return err
			}
		}
	case "passthrough":
	default:
		return fmt.Errorf("the type %q is not known", auth.Type)
	}
	return nil
}

func (b *Binding) addHeader(name, prefix, credential string, all *wireVault) error {
	value, err := b.valueOf(credential, all)
	switch {
	case err != nil:
		return err
	case value == "":
		return nil // no request of this binding is sent
	case !httpguts.ValidHeaderFieldName(name) || isReserved(name):
		return fmt.Errorf("the header %q cannot be set", name)
	case !httpguts.ValidHeaderFieldValue(value):
		return fmt.Errorf("the credential %q cannot stand in a header", credential)
	}
	b.Headers = append(b.Headers, Header{name, prefix + value})
	return nil
}

// valueOf is empty, and the binding is without what it needs, when a credential is there and its value is not.
func (b *Binding) valueOf(credential string, all *wireVault) (string, error) {
	value := all.Credentials[credential]
	switch {
	case value != "":
		return value, nil
	case slices.Contains(all.Unavailable, credential):
		b.Lacks = credential
		return "", nil
	}
	return "", fmt.Errorf("there is no credential %q", credential)
}

var reserved = []string{"host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "te",
	"trailer", "forwarded", "keep-alive", "expect", "content-encoding", "accept-encoding", "range"}

func isReserved(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return slices.Contains(reserved, name) || strings.HasPrefix(name, "proxy-") || strings.HasPrefix(name, "x-forwarded-")
}

func (b *Binding) setSubstitutions(auth *wireAuth, all *wireVault) error {
	for _, each := range auth.Substitutions {
		value, err := b.valueOf(each.Credential, all)
		if err != nil {
			return err
		}
		if each.Placeholder == "" {
			return errors.New("a placeholder is empty")
		}
		places := map[Place]bool{}
		for _, place := range each.In {
			if !slices.Contains([]Place{InPath, InQuery, InHeader, InBody}, place) {
				return fmt.Errorf("placeholders are not replaced in %q", place)
			}
			places[place] = true
		}
		if places[InHeader] && !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("the credential %q cannot stand in a header", each.Credential)
		}
		b.Substitutions = append(b.Substitutions, Substitution{each.Placeholder, value, places})
	}
	return nil
}
