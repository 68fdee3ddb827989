// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package resolve is the name server of the sandboxes. It answers for names that a policy allows,
// sends no other name anywhere, and opens the addresses that it tells before it tells them.
package resolve

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/sandbox"
)

// How long an address stays open after an answer named it: as long as the answer may be kept, but
// not less than clients keep it against the rules, and a little more than they were told.
const (
	leastHold = 5 * time.Minute
	mostHold  = time.Hour
	grace     = 30 * time.Second
)

// Resolver answers one sandbox's questions.
type Resolver struct {
	upstream *Upstream
	world    *policy.World
	audit    *audit.Log
}

// New asks upstream for what is allowed.
func New(upstream *Upstream, world *policy.World, log *audit.Log) *Resolver {
	return &Resolver{upstream, world, log}
}

// Answer is the reply to a message, nil for one that deserves none.
func (r *Resolver) Answer(ctx context.Context, s *sandbox.Sandbox, query *dns.Msg) *dns.Msg {
	if query.Response {
		return nil
	}
	if query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		return refuse(query, dns.RcodeNotImplemented)
	}
	question := query.Question[0]
	if question.Qclass != dns.ClassINET || isTransfer(question.Qtype) {
		return refuse(query, dns.RcodeRefused)
	}
	if !s.TakeQuery() {
		r.audit.Write(audit.Record{Sandbox: s.ID, Kind: "dns", Decision: "deny", Rule: "limits", Reason: "too many queries per second"})
		return refuse(query, dns.RcodeRefused)
	}
	name, err := policy.Canonical(question.Name)
	if err != nil {
		r.note(s, question, policy.Decision{Rule: -1, By: "names", Reason: "not a host name"})
		return refuse(query, dns.RcodeNameError)
	}
	p := s.Policy()
	decided := p.Resolvable(r.world, name)
	if !decided.Allow {
		r.note(s, question, decided)
		return refuse(query, dns.RcodeNameError)
	}
	return r.allowed(ctx, s, p, query, name, decided)
}

func isTransfer(kind uint16) bool {
	return kind == dns.TypeAXFR || kind == dns.TypeIXFR || kind == dns.TypeANY || kind == dns.TypeNULL
}

func refuse(query *dns.Msg, code int) *dns.Msg {
	reply := new(dns.Msg).SetRcode(query, code)
	reply.RecursionAvailable = true
	return reply
}

func (r *Resolver) note(s *sandbox.Sandbox, q dns.Question, decided policy.Decision, addresses ...netip.Addr) {
	record := audit.Record{Sandbox: s.ID, Kind: "dns", Name: printable(q.Name), Protocol: dns.TypeToString[q.Qtype]}
	var texts []string
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	record.Address = strings.Join(texts, " ")
	r.audit.Write(record.Judged(decided))
}

func printable(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func (r *Resolver) allowed(ctx context.Context, s *sandbox.Sandbox, p *policy.Policy, query *dns.Msg, name string, decided policy.Decision) *dns.Msg {
	question := query.Question[0]
	switch question.Qtype {
	case dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
		// Sandboxes have no IPv6, and these records would lead to addresses, ports and encrypted
		// names that nothing here has judged.
		return refuse(query, dns.RcodeSuccess)
	}
	answer, err := r.upstream.Ask(ctx, name, question.Qtype)
	if err != nil {
		r.note(s, question, policy.Decision{Rule: -1, By: "upstream resolver", Reason: err.Error()})
		return refuse(query, dns.RcodeServerFailure)
	}
	reply := refuse(query, answer.Rcode)
	records, addresses, dropped := r.usable(p, name, answer, question)
	if len(addresses) > 0 {
		if err := s.Learn(p, name, addresses, time.Now().Add(hold(records))); err != nil {
			r.note(s, question, policy.Decision{Rule: -1, By: "packet filter", Reason: err.Error()})
			return refuse(query, dns.RcodeServerFailure)
		}
		r.note(s, question, decided, addresses...)
	}
	if len(dropped) > 0 {
		r.note(s, question, policy.Decision{Rule: -1, By: "closed networks",
			Reason: "the answer points at a private, special or host address that no rule names"}, dropped...)
		if len(addresses) == 0 {
			return refuse(query, dns.RcodeNameError)
		}
	}
	reply.Answer = renamed(records, question.Name, name)
	reply.Ns = onlySOA(answer.Ns)
	return reply
}

// usable keeps of an answer what the question asked for, without addresses that are closed.
func (r *Resolver) usable(p *policy.Policy, name string, answer *dns.Msg, question dns.Question) (kept []dns.RR, addresses, dropped []netip.Addr) {
	chain := map[string]bool{name: true}
	for _, record := range answer.Answer {
		head := record.Header()
		if head.Class != dns.ClassINET || !chain[printable(head.Name)] {
			continue
		}
		if alias, ok := record.(*dns.CNAME); ok {
			chain[printable(alias.Target)] = true
			kept = append(kept, record)
			continue
		}
		if head.Rrtype != question.Qtype {
			continue
		}
		if a, ok := record.(*dns.A); ok {
			address, valid := netip.AddrFromSlice(a.A.To4())
			if !valid || !r.mayPoint(p, address) {
				dropped = append(dropped, address)
				continue
			}
			addresses = append(addresses, address)
		}
		kept = append(kept, record)
	}
	return kept, addresses, dropped
}

// mayPoint tells whether an answer may contain an address: closed ones need a rule that names them.
func (r *Resolver) mayPoint(p *policy.Policy, address netip.Addr) bool {
	if !r.world.IsClosed(address) {
		return true
	}
	for i := range p.Rules {
		if rule := &p.Rules[i]; rule.Name == "" && rule.Prefix.Contains(address) {
			return rule.Action == policy.Allow
		}
	}
	return false
}

// hold is for how long the addresses of an answer stay open; records are told to live no longer.
func hold(records []dns.RR) time.Duration {
	least := mostHold
	for _, record := range records {
		least = min(least, time.Duration(record.Header().Ttl)*time.Second)
	}
	for _, record := range records {
		record.Header().Ttl = min(record.Header().Ttl, uint32(mostHold/time.Second))
	}
	return max(least, leastHold) + grace
}

// renamed gives the first names back the spelling in which they were asked for, since some clients
// compare it.
func renamed(records []dns.RR, asked, name string) []dns.RR {
	for _, record := range records {
		if printable(record.Header().Name) == name {
			record.Header().Name = asked
		}
	}
	return records
}

func onlySOA(records []dns.RR) []dns.RR {
	var kept []dns.RR
	for _, record := range records {
		if record.Header().Rrtype == dns.TypeSOA {
			kept = append(kept, record)
		}
	}
	return kept
}

// Verify asks again whether an allowed name has an address, and opens what it has.
func (r *Resolver) Verify(ctx context.Context, s *sandbox.Sandbox, name string, address netip.Addr) (bool, error) {
	p := s.Policy()
	if !p.Resolvable(r.world, name).Allow || !s.TakeQuery() {
		return false, nil
	}
	found, until, err := r.Lookup(ctx, p, name)
	if err != nil {
		return false, err
	}
	if len(found) > 0 {
		if err := s.Learn(p, name, found, until); err != nil {
			return false, err
		}
	}
	_, known := s.Knows(name, address)
	return known, nil
}

// Lookup finds the usable addresses of an allowed name.
func (r *Resolver) Lookup(ctx context.Context, p *policy.Policy, name string) ([]netip.Addr, time.Time, error) {
	answer, err := r.upstream.Ask(ctx, name, dns.TypeA)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%s cannot be looked up: %w", name, err)
	}
	records, found, _ := r.usable(p, name, answer, dns.Question{Qtype: dns.TypeA})
	return found, time.Now().Add(hold(records)), nil
}
