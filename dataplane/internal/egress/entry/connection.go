// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/sandbox"
)

// connection is one accepted connection and, once it is allowed, the one that continues it.
type connection struct {
	entry   *Entry
	box     *sandbox.Sandbox
	client  *net.TCPConn
	started time.Time
	head    []byte

	mu       sync.Mutex
	query    policy.Query
	upstream *net.TCPConn
	admitted bool
	ended    bool
	kind     string
	up, down int64
	taken    bool // by the interceptor
	requests map[*asked]struct{}
}

// run decides by what the client says first, then passes bytes until both sides are done.
func (c *connection) run() {
	if decided := c.judge(c.query); decided.Allow && c.addressSuffices(decided) && !c.mayBeBound() {
		if c.connect("tcp", decided) {
			c.pass()
		}
		return
	}
	patience := courtesy
	if c.query.Port == 80 || c.query.Port == 443 {
		patience = firstBytes
	}
	switch c.listen(patience) {
	case speaksTLS:
		c.runTLS()
	case speaksHTTP:
		c.runHTTP()
	default:
		c.runOther()
	}
}

// addressSuffices tells whether no name could change what a rule on the address has decided.
func (c *connection) addressSuffices(decided policy.Decision) bool {
	p := c.box.Policy()
	if !byAddress(p, decided) {
		return false
	}
	return !slices.ContainsFunc(p.Rules[:decided.Rule], func(r policy.Rule) bool { return r.Name != "" })
}

// listen reads until it is known what the client speaks, or until it is not worth waiting.
func (c *connection) listen(patience time.Duration) kind {
	_ = c.client.SetReadDeadline(time.Now().Add(patience))
	defer func() { _ = c.client.SetReadDeadline(time.Time{}) }()
	for {
		if told := classify(c.head); told != undecided {
			return told
		}
		if c.more() != nil {
			return undecided
		}
	}
}

func (c *connection) more() error {
	if len(c.head) > longestHello {
		return errNoRoom
	}
	buffer := make([]byte, 4096)
	n, err := c.client.Read(buffer)
	c.head = append(c.head, buffer[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

func (c *connection) runTLS() {
	hello, err := c.hello()
	if err != nil {
		c.refuse("tls", policy.Decision{Rule: -1, By: "TLS", Reason: err.Error()})
		return
	}
	if name, err := policy.Canonical(hello.Name); err == nil && c.isBound(name, true) {
		c.runBound(name)
		return
	}
	decided := c.judgeHello(hello)
	if !decided.Allow {
		c.refuse("tls", decided)
		return
	}
	if c.connect("tls", decided) {
		c.pass()
	}
}

func (c *connection) hello() (*Hello, error) {
	_ = c.client.SetReadDeadline(time.Now().Add(firstBytes))
	defer func() { _ = c.client.SetReadDeadline(time.Time{}) }()
	for {
		hello, err := parseHello(c.head)
		if !errors.Is(err, errMore) {
			return hello, err
		}
		if err := c.more(); err != nil {
			return nil, errors.New("the client hello did not arrive in full")
		}
	}
}

// judgeHello decides by the server's name, which must be told in clear and own the address.
func (c *connection) judgeHello(hello *Hello) policy.Decision {
	name, err := policy.Canonical(hello.Name)
	if hello.Name != "" && err != nil {
		return policy.Decision{Rule: -1, By: "TLS", Reason: "the server name is no host name"}
	}
	if hello.Name == "" {
		name = ""
	}
	c.setName(name)
	decided := c.judge(c.query)
	p := c.box.Policy()
	switch {
	case !decided.Allow && name == "" && decided.Rule < 0 && p.Default == policy.Deny:
		decided.Reason = "no server name was sent (SNI), and no rule allows the address"
	case decided.Allow && hello.Encrypted && !byAddress(p, decided) && (p.Default == policy.Deny || p.DeniesNames()):
		return policy.Decision{Rule: -1, By: "TLS", Reason: "the real server name is encrypted (ECH), so it cannot be checked"}
	}
	return decided
}

// byAddress tells whether a rule on the address decided.
func byAddress(p *policy.Policy, d policy.Decision) bool {
	return d.Rule >= 0 && d.Rule < len(p.Rules) && p.Rules[d.Rule].Name == ""
}

func byName(p *policy.Policy, d policy.Decision) bool {
	return d.Rule >= 0 && d.Rule < len(p.Rules) && p.Rules[d.Rule].Name != ""
}

// judge asks the policy; what a name allows must be at an address of that name.
func (c *connection) judge(q policy.Query) policy.Decision {
	p := c.box.Policy()
	decided := p.Decide(c.entry.registry.World(), q)
	if decided.Allow && byName(p, decided) && !c.entry.belongs(c.box, q.Name, q.Address) {
		return policy.Decision{Rule: -1, By: decided.By, Reason: q.Name + " does not resolve to " + q.Address.String()}
	}
	return decided
}

// judgeUnseen decides about a protocol that tells no name: by the address, else by any name that
// resolved to it. Where names are always told, on 80 and 443, silence allows nothing.
func (c *connection) judgeUnseen() policy.Decision {
	decided := c.judge(c.query)
	if decided.Allow {
		return decided
	}
	if c.query.Port == 80 || c.query.Port == 443 {
		decided.Reason = "neither TLS nor HTTP/1 was spoken, so no name can be checked, and no rule allows the address"
		return decided
	}
	for _, name := range c.box.NamesOf(c.query.Address) {
		q := c.query
		q.Name = name
		if found := c.judge(q); found.Allow {
			c.setName(name)
			return found
		}
	}
	return decided
}

func (c *connection) runOther() {
	decided := c.judgeUnseen()
	if !decided.Allow {
		c.refuse("tcp", decided)
		return
	}
	if !c.connect("tcp", decided) {
		return
	}
	c.passLate()
}

// connect continues the connection from this host to where it was going.
func (c *connection) connect(kind string, decided policy.Decision) bool {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	dialed, err := c.entry.dialer.DialContext(ctx, "tcp", netAddrPort(c.query).String())
	if err != nil {
		c.note(kind, policy.Decision{Allow: false, Rule: decided.Rule, By: decided.By, Reason: "allowed, but " + plain(err)})
		abort(c.client)
		return false
	}
	c.mu.Lock()
	c.upstream, c.kind, c.admitted = dialed.(*net.TCPConn), kind, true
	ended := c.ended
	c.mu.Unlock()
	if ended || !c.judge(c.query).Allow { // the policy changed while it was being opened
		c.End()
		return false
	}
	c.note(kind, decided)
	c.box.Saw(sandbox.Destination{Name: c.query.Name, Address: c.query.Address.String(), Port: c.query.Port, Protocol: "tcp"})
	return true
}

func plain(err error) string {
	var system *os.SyscallError
	if errors.As(err, &system) {
		return "the destination did not answer: " + system.Err.Error()
	}
	return "the destination did not answer: " + err.Error()
}

func (c *connection) setName(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.query.Name = name
}

func (c *connection) record(kind string) audit.Record {
	return audit.Record{Sandbox: c.box.ID, Kind: kind, Name: c.query.Name, Address: c.query.Address.String(),
		Port: c.query.Port, Protocol: "tcp"}
}

func (c *connection) note(kind string, decided policy.Decision) {
	c.entry.audit.Write(c.record(kind).Judged(decided))
}

func (c *connection) refuse(kind string, decided policy.Decision) {
	c.note(kind, decided)
	abort(c.client)
}

// Judge implements sandbox.Connection.
func (c *connection) Judge(p *policy.Policy) {
	c.mu.Lock()
	query, admitted := c.query, c.admitted
	c.mu.Unlock()
	if !admitted {
		return // it is judged by the new policy when it is opened
	}
	if decided := c.judgeAgain(p, query); !decided.Allow {
		decided.Reason = "the policy changed"
		c.note(c.kind, decided)
		c.End()
		return
	}
	c.judgeRequests(p)
}

// judgeAgain asks a new policy about something open, without looking anything up.
func (c *connection) judgeAgain(p *policy.Policy, query policy.Query) policy.Decision {
	decided := p.Decide(c.entry.registry.World(), query)
	if decided.Allow && byName(p, decided) {
		_, decided.Allow = c.box.Knows(query.Name, query.Address)
	}
	return decided
}

// End implements sandbox.Connection.
func (c *connection) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	abort(c.client)
	if c.upstream != nil {
		abort(c.upstream)
	}
}

// finish closes what is open and writes down what passed.
func (c *connection) finish() {
	c.box.Untrack(c)
	_ = c.client.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.upstream != nil {
		_ = c.upstream.Close()
	} else if !c.taken {
		return
	}
	closed := c.record(c.kind)
	closed.Decision, closed.Up, closed.Down = "closed", c.up, c.down
	closed.Seconds = time.Since(c.started).Round(time.Microsecond).Seconds()
	c.entry.audit.Write(closed)
}
