// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import (
	"net/netip"
	"slices"
)

// Resolvable decides whether a name may be looked up: whether any connection to it could be allowed.
func (p *Policy) Resolvable(w *World, name string) Decision {
	for i := range p.Rules {
		rule := &p.Rules[i]
		if !rule.matchesName(name) {
			continue
		}
		if rule.Action == Allow || rule.isWhole() {
			return decidedBy(rule, i, false)
		}
	}
	if p.Default == Deny {
		return Decision{Rule: byDefault, By: "default deny", Reason: "no rule allows this name"}
	}
	if w.DoH.Covers(Query{Name: name, Port: 443, Protocol: TCP}) {
		return Decision{Rule: byDefault, By: "known DoH resolvers", Reason: "it is a known resolver over HTTPS"}
	}
	return Decision{Allow: true, Rule: byDefault, By: "default allow", Reason: "no rule denies this name"}
}

// isWhole tells whether a rule is about everything at its target.
func (r *Rule) isWhole() bool {
	return len(r.Ports)+len(r.Protocols)+len(r.Methods)+len(r.Paths) == 0
}

// DeniesNames tells whether some name is denied by a rule, so that an unknown name is suspect.
func (p *Policy) DeniesNames() bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Name != "" && r.Action == Deny })
}

// DatagramPorts tells which UDP ports are opened at an address because a name resolved to it: all
// that are not built-in exceptions, or a few. An earlier rule on the address that denies anything
// opens none: what cannot be expressed exactly stays closed.
func (p *Policy) DatagramPorts(w *World, name string, address netip.Addr) (all bool, ports []uint16) {
	closed := w.IsClosed(address)
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.Name == "" && rule.Action == Deny && rule.Prefix.Contains(address) {
			return false, ports
		}
		if !rule.matchesName(name) || len(rule.Methods)+len(rule.Paths) > 0 {
			continue
		}
		if len(rule.Protocols) > 0 && !slices.Contains(rule.Protocols, UDP) {
			continue
		}
		if rule.Action == Deny || closed {
			return false, ports
		}
		if len(rule.Ports) == 0 {
			return true, ports
		}
		for _, each := range rule.Ports {
			ports = append(ports, expand(each)...)
		}
	}
	return false, ports
}

const maxExpanded = 64

// expand lists the ports of a range that names may open for UDP.
func expand(p Ports) []uint16 {
	var listed []uint16
	for port := int(p.First); port <= int(p.Last) && len(listed) < maxExpanded; port++ {
		if port != 53 && port != 80 && port != 443 && port != 853 {
			listed = append(listed, uint16(port))
		}
	}
	return listed
}

// LooksAtPaths tells whether a rule that could decide about a query compares paths.
func (p *Policy) LooksAtPaths(q Query) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool {
		return len(r.Paths) > 0 && r.matchesTarget(q) && r.matchesTransport(q)
	})
}

// AllowedPrefixes are the IPv4 networks to which some rule allows TCP.
func (p *Policy) AllowedPrefixes() []netip.Prefix {
	var found []netip.Prefix
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.Name != "" || rule.Action != Allow || !rule.Prefix.Addr().Is4() {
			continue
		}
		if len(rule.Protocols) == 0 || slices.Contains(rule.Protocols, TCP) {
			found = append(found, rule.Prefix)
		}
	}
	return found
}
