// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Query is one connection, packet flow or request of which a policy is asked.
type Query struct {
	Name     string // canonical, "" when none is known
	Address  netip.Addr
	Port     uint16
	Protocol Protocol
	Request  *Request // nil when what is inside cannot be seen, or not yet
	Later    bool     // whether every request inside will be asked about by itself
}

// Request is a plain HTTP request.
type Request struct{ Method, Path string }

// Decision is an answer with its reason. Rule is -1 when the default or something built in decided.
type Decision struct {
	Allow  bool
	Rule   int
	By     string // the rule's text, or what else decided
	Reason string
}

const byDefault = -1

// World is what decisions depend on besides the policy: the same for all sandboxes of a server.
type World struct {
	Closed  []netip.Prefix // never reached unless a rule names the address
	Public  []netip.Prefix // exceptions from Closed
	DoH     *DoH           // nil when known resolvers over HTTPS are nothing special
	IsLocal func(netip.Addr) bool
}

// IsClosed tells whether an address is private, special or the host's own.
func (w *World) IsClosed(address netip.Addr) bool {
	address = address.Unmap()
	if containsAddress(w.Public, address) {
		return false
	}
	return containsAddress(w.Closed, address) || w.IsLocal != nil && w.IsLocal(address)
}

func containsAddress(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Decide is the whole verdict on one query: the first rule that matches, then the default; what is
// closed needs a rule that names the address.
func (p *Policy) Decide(w *World, q Query) Decision {
	decided := p.decide(w, q)
	if !decided.Allow || !q.Address.IsValid() || !w.IsClosed(q.Address) {
		return decided
	}
	if p.namesAddress(q) {
		return decided
	}
	return Decision{Rule: byDefault, By: "closed networks", Reason: fmt.Sprintf(
		"%s is a private, special or host address, and no rule names it", q.Address)}
}

func (p *Policy) decide(w *World, q Query) Decision {
	for i := range p.Rules {
		rule := &p.Rules[i]
		if !rule.matchesTarget(q) || !rule.matchesTransport(q) {
			continue
		}
		if matches, unseen := rule.matchesRequest(q); matches {
			return decidedBy(rule, i, unseen)
		}
	}
	if p.Default == Deny {
		return Decision{Rule: byDefault, By: "default deny", Reason: "no rule allows it"}
	}
	if w.DoH.Covers(q) {
		return Decision{Rule: byDefault, By: "known DoH resolvers", Reason: "it is a known resolver over HTTPS"}
	}
	if reason := unverifiable(q); reason != "" {
		return Decision{Rule: byDefault, By: "default allow", Reason: reason}
	}
	return Decision{Allow: true, Rule: byDefault, By: "default allow", Reason: "no rule denies it"}
}

func decidedBy(rule *Rule, index int, unseen bool) Decision {
	reason := "first matching rule"
	if unseen {
		reason = "the rule looks at requests, and this one cannot be seen"
	}
	return Decision{Allow: rule.Action == Allow, Rule: index, By: rule.String(), Reason: reason}
}

// namesAddress tells whether the first rule on the address itself allows it.
func (p *Policy) namesAddress(q Query) bool {
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.Name == "" && rule.Prefix.Contains(q.Address.Unmap()) && rule.matchesTransport(q) {
			if matches, _ := rule.matchesRequest(q); matches {
				return rule.Action == Allow
			}
		}
	}
	return false
}

// unverifiable is why a flow is denied under default allow: it would go past every check of names.
func unverifiable(q Query) string {
	switch {
	case q.Port == 853:
		return "resolvers over TLS or QUIC need a rule with the port 853"
	case q.Protocol == UDP && (q.Port == 443 || q.Port == 80):
		return "QUIC hides the name; the client will use TCP"
	}
	return ""
}

func (r *Rule) matchesTarget(q Query) bool {
	if r.Name != "" {
		return r.matchesName(q.Name)
	}
	return q.Address.IsValid() && r.Prefix.Contains(q.Address.Unmap())
}

// matchesTransport compares protocol and port. What a rule allows without saying a port excludes
// other resolvers and, for names, QUIC; what it denies excludes nothing.
func (r *Rule) matchesTransport(q Query) bool {
	if len(r.Protocols) == 0 {
		if q.Protocol == ICMP && (r.Action == Allow || len(r.Ports) > 0) {
			return false
		}
	} else if !slices.Contains(r.Protocols, q.Protocol) {
		return false
	}
	if q.Protocol == ICMP {
		return true
	}
	if len(r.Ports) > 0 {
		return slices.ContainsFunc(r.Ports, func(p Ports) bool { return p.First <= q.Port && q.Port <= p.Last })
	}
	return r.Action == Deny || unverifiable(q) == "" && q.Port != 53
}

// matchesRequest compares method and path. Of what cannot be seen, an allowing rule matches nothing
// and a denying one everything; of what will be seen later it is the other way round.
func (r *Rule) matchesRequest(q Query) (matches, unseen bool) {
	request := q.Request
	if len(r.Methods)+len(r.Paths) == 0 {
		return true, false
	}
	if request == nil {
		return (r.Action == Deny) != q.Later, !q.Later
	}
	if len(r.Methods) > 0 && !slices.ContainsFunc(r.Methods, func(m string) bool {
		return strings.EqualFold(m, request.Method)
	}) {
		return false, false
	}
	return len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(p string) bool { return matchesPath(p, request.Path) }), false
}

// matchesPath compares a path without its query; a final star stands for the rest.
func matchesPath(pattern, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
		return strings.HasPrefix(path, prefix)
	}
	return path == pattern
}
