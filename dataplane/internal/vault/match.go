// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package vault

import (
	"fmt"
	"slices"
	"strings"
)

// Destination is where a request goes, as far as it was checked and not only claimed: the name that
// the certificate was asked for, or that resolved to the address.
type Destination struct {
	Name string // canonical
	Port uint16
	TLS  bool
}

func (d Destination) scheme() string {
	if d.TLS {
		return "https"
	}
	return "http"
}

// Ambiguous is the error when several bindings fit equally well.
type Ambiguous struct{ First, Second string }

func (a *Ambiguous) Error() string {
	return fmt.Sprintf("the bindings %q and %q fit this request equally well", a.First, a.Second)
}

// Binds tells whether some request to a destination could get a credential.
func (v *Vault) Binds(d Destination) bool {
	return v != nil && slices.ContainsFunc(v.bindings, func(b Binding) bool { return b.reaches(d) && b.hostClass(d.Name) > 0 })
}

// Looks tells whether connections to a port have to be looked at for the hosts that they name.
func (v *Vault) Looks(port uint16) bool {
	return v != nil && slices.ContainsFunc(v.bindings, func(b Binding) bool {
		return b.reaches(Destination{Port: port, TLS: true}) || b.reaches(Destination{Port: port})
	})
}

// RedactsBodies tells whether answers of a destination are looked through. It does not depend on
// the request: what one request leaves at a server another may fetch.
func (v *Vault) RedactsBodies(d Destination) bool {
	return v != nil && slices.ContainsFunc(v.bindings, func(b Binding) bool {
		return b.RedactBodies && b.reaches(d) && b.hostClass(d.Name) > 0
	})
}

// Find is the binding of a request, nil when it has none. A host by its name goes before a wildcard.
func (v *Vault) Find(d Destination, method string, path Path) (*Binding, error) {
	var best *Binding
	bestClass := 0
	var failed error
	for i := range v.bindings {
		each := &v.bindings[i]
		class := each.hostClass(d.Name)
		if class == 0 || class < bestClass || !each.reaches(d) || !each.takes(method, path) {
			continue
		}
		if class > bestClass {
			best, bestClass, failed = each, class, nil
			continue
		}
		failed = &Ambiguous{best.Name, each.Name}
	}
	if failed != nil {
		return nil, failed
	}
	return best, nil
}

const (
	byWildcard = 1
	byName     = 2
)

func (b *Binding) hostClass(name string) int {
	class := 0
	for _, host := range b.hosts {
		if host == name {
			return byName
		}
		if below, ok := strings.CutPrefix(host, "*"); ok && strings.HasSuffix(name, below) && len(name) > len(below) {
			class = byWildcard
		}
	}
	return class
}

// reaches compares scheme and port. Where both schemes and both well-known ports are listed, each
// port goes with its own scheme.
func (b *Binding) reaches(d Destination) bool {
	if d.TLS && d.Port == 80 || !d.TLS && d.Port == 443 {
		return false
	}
	return slices.Contains(b.schemes, d.scheme()) && slices.Contains(b.ports, d.Port)
}

func (b *Binding) takes(method string, path Path) bool {
	return slices.Contains(b.methods, method) && slices.ContainsFunc(b.paths, func(p pattern) bool { return p.matches(path) })
}

// AllowsMethod tells whether requests of a method get this binding's credentials.
func (b *Binding) AllowsMethod(method string) bool { return slices.Contains(b.methods, method) }
