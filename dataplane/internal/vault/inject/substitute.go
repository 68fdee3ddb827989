// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package inject

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"casulo.dev/dataplane/internal/vault"
)

// encode writes a text as a part of a request needs it, so that no value can break out of its place.
type encode func(string) string

func inPath(text string) string  { return url.PathEscape(text) }
func inQuery(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
func inForm(text string) string  { return url.QueryEscape(text) }
func asItIs(text string) string  { return text }

func inJSON(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return "" // no string is without a JSON form
	}
	return string(quoted[1 : len(quoted)-1])
}

// pair is what is replaced and what stands there instead.
type pair struct{ old, new string }

// pairsFor are the replacements of a binding in a place. A placeholder is also found in the form in
// which the place would have it written.
func pairsFor(b *vault.Binding, where vault.Place, written encode) []pair {
	var found []pair
	if b == nil {
		return nil
	}
	for _, each := range b.Substitutions {
		if !each.Places[where] {
			continue
		}
		value := written(each.Value)
		found = append(found, pair{each.Placeholder, value})
		if other := written(each.Placeholder); other != each.Placeholder {
			found = append(found, pair{other, value})
		}
	}
	slices.SortStableFunc(found, func(a, b pair) int { return cmp.Compare(len(b.old), len(a.old)) })
	return found
}

// place replaces in one part of a request.
type place struct {
	name    vault.Place
	written encode
	replace *strings.Replacer
	remove  *strings.Replacer
	unknown []string
	pairs   []pair
	room    int
}

// mostPut is what values may take in one part of a request's head, however often a placeholder stands there.
const mostPut = 256 << 10

func newPlace(v *vault.Vault, b *vault.Binding, name vault.Place, written encode) *place {
	p := &place{name: name, written: written, unknown: v.Placeholders(), pairs: pairsFor(b, name, written), room: mostPut}
	var replace, remove []string
	for _, each := range p.pairs {
		replace, remove = append(replace, each.old, each.new), append(remove, each.old, "\x00")
	}
	if len(replace) > 0 {
		p.replace, p.remove = strings.NewReplacer(replace...), strings.NewReplacer(remove...)
	}
	return p
}

// put is the text with values in it. What is left of any placeholder must not leave the sandbox.
func (p *place) put(text string) (string, error) {
	rest := text
	if p.remove != nil {
		rest = p.remove.Replace(text)
	}
	undone := rest
	if p.name == vault.InPath || p.name == vault.InQuery {
		undone = vault.Undone(rest)
	}
	for _, each := range p.unknown {
		if strings.Contains(rest, each) || strings.Contains(rest, p.written(each)) || strings.Contains(undone, each) {
			return "", fmt.Errorf("the placeholder %q is not replaced in the %s of this request", each, p.name)
		}
	}
	if p.replace == nil {
		return text, nil
	}
	for _, each := range p.pairs {
		p.room -= strings.Count(text, each.old) * len(each.new)
	}
	if p.room < 0 {
		return "", fmt.Errorf("what stands for placeholders in the %s of this request is more than %d KiB", p.name, mostPut>>10)
	}
	return p.replace.Replace(text), nil
}

// Head replaces placeholders in a target, of the form path?query, and in headers. The binding is nil
// for requests that get nothing, in which no placeholder may be left.
func Head(v *vault.Vault, b *vault.Binding, target string, headers http.Header) (string, error) {
	if len(v.Placeholders()) == 0 {
		return target, nil
	}
	path, query, asked := strings.Cut(target, "?")
	path, err := newPlace(v, b, vault.InPath, inPath).put(path)
	if err != nil {
		return "", err
	}
	if _, err := vault.NormalPath(path); err != nil {
		return "", fmt.Errorf("with the value in its place %w", err)
	}
	if query, err = newPlace(v, b, vault.InQuery, inQuery).put(query); err != nil {
		return "", err
	}
	if asked {
		path += "?" + query
	}
	return path, inHeaders(newPlace(v, b, vault.InHeader, asItIs), headers)
}

func inHeaders(p *place, headers http.Header) error {
	for name, values := range headers {
		for i, value := range values {
			replaced, err := p.put(value)
			if err != nil {
				return err
			}
			if name == "Authorization" {
				if replaced, err = p.putBasic(replaced); err != nil {
					return err
				}
			}
			values[i] = replaced
		}
	}
	return nil
}

// putBasic looks into what Basic authorization hides, since that is how programs send a password.
func (p *place) putBasic(value string) (string, error) {
	scheme, encoded, found := strings.Cut(value, " ")
	if !found || !strings.EqualFold(scheme, "Basic") {
		return value, nil
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return value, nil
	}
	replaced, err := p.put(string(pair))
	if err != nil || replaced == string(pair) {
		return value, err
	}
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(replaced)), nil
}

// bodyEncoding is how values are written in a body of a type.
func bodyEncoding(contentType string) encode {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return asItIs
	case kind == "application/json", strings.HasSuffix(kind, "+json"), kind == "application/x-ndjson":
		return inJSON
	case kind == "application/x-www-form-urlencoded":
		return inForm
	}
	return asItIs
}
