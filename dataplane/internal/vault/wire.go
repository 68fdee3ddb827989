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
		bound, err := each.parse(wire.Credentials)
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

func (w *wireBinding) parse(credentials map[string]string) (*Binding, error) {
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
	if err := b.setHeaders(&w.Auth, credentials); err != nil {
		return nil, err
	}
	return b, b.setSubstitutions(&w.Auth, credentials)
}

func (b *Binding) setHeaders(auth *wireAuth, credentials map[string]string) error {
	switch auth.Type {
	case "bearer":
		return b.addHeader("Authorization", "Bearer ", auth.Credential, credentials)
	case "basic":
		return b.addHeader("Authorization", "Basic ", auth.Credential, credentials)
	case "apiKey":
		return b.addHeader(auth.Name, "", auth.Credential, credentials)
	case "customHeaders":
		for _, each := range auth.Headers {
			if err := b.addHeader(each.Name, "", each.Credential, credentials); err != nil {
				return err
			}
		}
	case "passthrough":
	default:
		return fmt.Errorf("the type %q is not known", auth.Type)
	}
	return nil
}

func (b *Binding) addHeader(name, prefix, credential string, credentials map[string]string) error {
	value, known := credentials[credential]
	switch {
	case !known || value == "":
		return fmt.Errorf("there is no credential %q", credential)
	case !httpguts.ValidHeaderFieldName(name) || isReserved(name):
		return fmt.Errorf("the header %q cannot be set", name)
	case !httpguts.ValidHeaderFieldValue(value):
		return fmt.Errorf("the credential %q cannot stand in a header", credential)
	}
	b.Headers = append(b.Headers, Header{name, prefix + value})
	return nil
}

var reserved = []string{"host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "te",
	"trailer", "forwarded", "keep-alive", "expect", "content-encoding", "accept-encoding", "range"}

func isReserved(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return slices.Contains(reserved, name) || strings.HasPrefix(name, "proxy-") || strings.HasPrefix(name, "x-forwarded-")
}

func (b *Binding) setSubstitutions(auth *wireAuth, credentials map[string]string) error {
	for _, each := range auth.Substitutions {
		value, known := credentials[each.Credential]
		if !known || value == "" {
			return fmt.Errorf("there is no credential %q", each.Credential)
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
