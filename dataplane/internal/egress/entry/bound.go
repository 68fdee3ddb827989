// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"strings"

	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/sandbox"
	"casulo.dev/dataplane/internal/vault"
)

// Interceptor takes over connections.
type Interceptor interface {
	// Serve returns when the connection has ended.
	Serve(*Flow)
}

// Flow is a connection to a bound host.
type Flow struct {
	Sandbox     *sandbox.Sandbox
	Client      net.Conn
	Reader      io.Reader // what Client says, from its first byte
	Destination netip.AddrPort
	Name        string // the server name of TLS, canonical; "" for plain HTTP

	connection *connection
}

// asked is a request that the interceptor has under way.
type asked struct {
	query  policy.Query
	cancel func()
}

func (c *connection) isBound(name string, tls bool) bool {
	return c.entry.Interceptor != nil && name != "" &&
		c.box.Vault().Binds(vault.Destination{Name: name, Port: c.query.Port, TLS: tls})
}

// mayBeBound tells whether a connection must be looked at although its address is allowed.
func (c *connection) mayBeBound() bool {
	return c.entry.Interceptor != nil && c.box.Vault().Looks(c.query.Port)
}

// runBound has the interceptor serve a TLS connection. Some request on it must be possible, and the
// address must be one of the name, whatever allows it.
func (c *connection) runBound(name string) {
	c.mu.Lock()
	c.query.Name, c.query.Later = name, true
	query := c.query
	c.mu.Unlock()
	decided := c.judgeBound(query)
	if !decided.Allow {
		c.refuse("tls", decided)
		return
	}
	c.hand("tls", io.MultiReader(bytes.NewReader(c.head), c.client), name, decided)
}

func (c *connection) judgeBound(query policy.Query) policy.Decision {
	decided := c.judge(query)
	if decided.Allow && !c.entry.belongs(c.box, query.Name, query.Address) {
		return policy.Decision{Rule: -1, By: "vault", Reason: query.Name + " does not resolve to " + query.Address.String()}
	}
	return decided
}

// hand gives the connection away and returns when it has ended.
func (c *connection) hand(kind string, reader io.Reader, name string, decided policy.Decision) {
	c.mu.Lock()
	c.kind, c.admitted, c.taken, c.query.Later = kind, true, true, true
	c.query.Request = nil
	c.requests = map[*asked]struct{}{}
	ended := c.ended
	c.mu.Unlock()
	if ended || !c.judge(c.query).Allow { // the policy changed meanwhile
		c.End()
		return
	}
	c.note(kind, decided)
	c.box.Saw(sandbox.Destination{Name: c.query.Name, Address: c.query.Address.String(), Port: c.query.Port, Protocol: "tcp"})
	c.entry.Interceptor.Serve(&Flow{Sandbox: c.box, Client: &counted{c.client, c}, Reader: &countedReader{reader, c},
		Destination: netAddrPort(c.query), Name: name, connection: c})
}

// handOver gives away a plain connection on which a bound host was just named.
func (x *exchange) handOver(m *message) {
	if x.upstream != nil { // no request is under way on it
		_ = x.upstream.Close()
		<-x.watched
	}
	x.hand("http", io.MultiReader(bytes.NewReader(m.raw), x.fromClient), "", policy.Decision{Allow: true, Rule: -1,
		By: "vault", Reason: "each request is judged by itself"})
}

// Begin asks the policy about a request on the connection. The request is cancelled when a later
// policy denies it; the caller calls end when it is over.
func (f *Flow) Begin(name, method, target string, bound bool, cancel func()) (decided policy.Decision, end func()) {
	c := f.connection
	query := policy.Query{Name: name, Address: f.Destination.Addr(), Port: f.Destination.Port(), Protocol: policy.TCP,
		Request: &policy.Request{Method: method, Path: target}}
	this := &asked{query, cancel}
	c.mu.Lock()
	c.requests[this] = struct{}{}
	c.mu.Unlock()
	end = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.requests, this)
	}
	switch {
	case c.box.Policy().LooksAtPaths(query) && !isNormal(target):
		return policy.Decision{Rule: -1, By: "HTTP", Reason: "the path is not in its normal form, so rules on paths cannot be applied"}, end
	case bound:
		return c.judgeBound(query), end
	}
	return c.judge(query), end
}

// judgeRequests ends those that a new policy denies.
func (c *connection) judgeRequests(p *policy.Policy) {
	c.mu.Lock()
	open := make([]*asked, 0, len(c.requests))
	for each := range c.requests {
		open = append(open, each)
	}
	c.mu.Unlock()
	for _, each := range open {
		if decided := c.judgeAgain(p, each.query); !decided.Allow {
			decided.Reason = "the policy changed"
			record := c.record(c.kind).Judged(decided)
			record.Name, record.Method = each.query.Name, each.query.Request.Method
			record.Path, _, _ = strings.Cut(each.query.Request.Path, "?")
			c.entry.audit.Write(record)
			each.cancel()
		}
	}
}

// Rebind implements sandbox.Connection: what is passed on untouched to a host that is bound now must
// not go on so.
func (c *connection) Rebind() {
	c.mu.Lock()
	query, passed := c.query, c.admitted && !c.taken && c.kind == "tls"
	c.mu.Unlock()
	if passed && c.isBound(query.Name, true) {
		c.note(c.kind, policy.Decision{Rule: -1, By: "vault", Reason: "its host is bound to a credential now"})
		c.End()
	}
}

// counted notes what goes to the client.
type counted struct {
	*net.TCPConn
	of *connection
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.of.mu.Lock()
	c.of.down += int64(n)
	c.of.mu.Unlock()
	return n, err
}

// countedReader notes what comes from the client.
type countedReader struct {
	io.Reader
	of *connection
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.of.mu.Lock()
	r.of.up += int64(n)
	r.of.mu.Unlock()
	return n, err
}
