// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package sandbox knows the sandboxes of this host: which policy each is under, which addresses it
// has learned, and which of its connections are open.
package sandbox

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"casulo.dev/dataplane/internal/egress/filter"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault"
)

// Connection is an open connection that a new policy may end.
type Connection interface {
	// Judge asks again whether it is allowed, and ends it when it is not.
	Judge(p *policy.Policy)
	// Rebind ends it when a new vault would have it looked into.
	Rebind()
	// End breaks it off.
	End()
}

// Sandbox is found by its interface or address, never by anything that it sends.
type Sandbox struct {
	ID        string
	Interface string
	Index     int
	Address   netip.Addr
	Baseline  string

	policy  atomic.Pointer[policy.Policy]
	vault   atomic.Pointer[vault.Vault]
	limits  Limits
	conns   *bucket
	queries *bucket
	calls   *bucket
	asking  share
	streams share
	filter  *filter.Filter
	world   *policy.World

	mu         sync.Mutex
	definition Definition
	generation uint32
	learned    map[string]map[netip.Addr]time.Time
	pairs      int
	open       map[Connection]struct{}
	seen       map[Destination]int
	failure    string
	failures   int
	gone       bool
}

// Destination is something that a sandbox was allowed to reach.
type Destination struct {
	Name     string `json:"name,omitempty"`
	Address  string `json:"address,omitempty"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

const maxSeen = 4096

// Policy is what holds now.
func (s *Sandbox) Policy() *policy.Policy { return s.policy.Load() }

// Decide asks the policy.
func (s *Sandbox) Decide(q policy.Query) policy.Decision { return s.Policy().Decide(s.world, q) }

// Resolvable asks the policy about a name.
func (s *Sandbox) Resolvable(name string) policy.Decision {
	return s.Policy().Resolvable(s.world, name)
}

// TakeQuery tells whether the sandbox may ask for one more name now.
func (s *Sandbox) TakeQuery() bool { return s.queries.take() }

// TakeCall tells whether one more request for the policy API may come out of the sandbox now.
func (s *Sandbox) TakeCall() bool { return s.calls.take() }

// Track admits a connection; the reason says why not. The caller calls Untrack at its end.
func (s *Sandbox) Track(c Connection) (reason string) {
	if !s.conns.take() {
		return "too many new connections per second"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return "the sandbox is gone"
	case len(s.open) >= s.limits.Connections:
		return "too many open connections"
	}
	s.open[c] = struct{}{}
	return ""
}

// Untrack forgets a connection that ended.
func (s *Sandbox) Untrack(c Connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// Learn notes that an allowed name resolved to addresses, and opens them. The policy under which
// that was decided must still be the one that holds.
func (s *Sandbox) Learn(p *policy.Policy, name string, addresses []netip.Addr, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.policy.Load() != p {
		return errChanged
	}
	var list []filter.Learned
	for _, address := range addresses {
		list = append(list, s.forFilter(p, name, address, until))
	}
	if err := s.filter.Learn(s.Interface, list); err != nil {
		s.fail(err)
		return err
	}
	for _, address := range addresses {
		s.remember(name, address, until)
	}
	return nil
}

func (s *Sandbox) forFilter(p *policy.Policy, name string, address netip.Addr, until time.Time) filter.Learned {
	all, ports := p.DatagramPorts(s.world, name, address)
	return filter.Learned{Address: address, AllUDP: all, UDP: ports, Until: until}
}

func (s *Sandbox) remember(name string, address netip.Addr, until time.Time) {
	known := s.learned[name]
	if known == nil {
		known = map[netip.Addr]time.Time{}
		s.learned[name] = known
	}
	if _, again := known[address]; !again {
		s.pairs++
	}
	known[address] = until
	if s.pairs > s.limits.Addresses {
		s.forgetOldest()
	}
}

func (s *Sandbox) forgetOldest() {
	var oldName string
	var oldAddress netip.Addr
	oldest := time.Now().Add(1000 * time.Hour)
	for name, known := range s.learned {
		for address, until := range known {
			if until.Before(oldest) {
				oldName, oldAddress, oldest = name, address, until
			}
		}
	}
	s.forget(oldName, oldAddress)
}

func (s *Sandbox) forget(name string, address netip.Addr) {
	delete(s.learned[name], address)
	if len(s.learned[name]) == 0 {
		delete(s.learned, name)
	}
	s.pairs--
}

// Knows tells until when an address belongs to a name, as this sandbox was told.
func (s *Sandbox) Knows(name string, address netip.Addr) (until time.Time, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, known = s.learned[name][address]
	return until, known && until.After(time.Now())
}

// NamesOf lists the names that resolved to an address.
func (s *Sandbox) NamesOf(address netip.Addr) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	now := time.Now()
	for name, known := range s.learned {
		if until, ok := known[address]; ok && until.After(now) {
			names = append(names, name)
		}
	}
	return names
}

// Saw notes a destination that was allowed, for those who want to learn a policy from it.
func (s *Sandbox) Saw(d Destination) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.seen[d]; again || len(s.seen) < maxSeen {
		s.seen[d]++
	}
}

func (s *Sandbox) fail(err error) {
	s.failures++
	s.failure = err.Error()
}

// sweep forgets pairs that ran out.
func (s *Sandbox) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, known := range s.learned {
		for address, until := range known {
			if until.Before(now) {
				s.forget(name, address)
			}
		}
	}
}
