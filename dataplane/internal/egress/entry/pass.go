// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"net"
	"net/netip"
	"sync"

	"casulo.dev/dataplane/internal/egress/policy"
)

func netAddrPort(q policy.Query) netip.AddrPort { return netip.AddrPortFrom(q.Address, q.Port) }

// pass moves bytes both ways, in the kernel, until both directions ended.
func (c *connection) pass() {
	if len(c.head) > 0 {
		if _, err := c.upstream.Write(c.head); err != nil {
			c.End()
			return
		}
		c.up += int64(len(c.head))
		c.head = nil
	}
	var both sync.WaitGroup
	both.Go(func() { c.move(c.client, c.upstream, &c.down) })
	c.move(c.upstream, c.client, &c.up)
	both.Wait()
}

// move passes one direction on, and its end: a clean end stays clean, a broken one breaks the other.
func (c *connection) move(to, from *net.TCPConn, count *int64) {
	n, err := to.ReadFrom(from)
	c.mu.Lock()
	*count += n
	c.mu.Unlock()
	if err != nil {
		c.End()
		return
	}
	_ = to.CloseWrite()
}

// passLate is for protocols in which the server speaks first. What the client says first is still
// looked at: a name that is told must be an allowed one, however late.
func (c *connection) passLate() {
	var both sync.WaitGroup
	both.Go(func() { c.move(c.client, c.upstream, &c.down) })
	defer both.Wait()
	told := classify(c.head)
	for told == undecided && c.more() == nil {
		told = classify(c.head)
	}
	if decided := c.judgeLate(told); !decided.Allow {
		c.note("tcp", decided)
		c.End()
		return
	}
	if len(c.head) > 0 {
		if _, err := c.upstream.Write(c.head); err != nil {
			c.End()
			return
		}
		c.mu.Lock()
		c.up += int64(len(c.head))
		c.mu.Unlock()
	}
	c.move(c.upstream, c.client, &c.up)
}

func (c *connection) judgeLate(told kind) policy.Decision {
	switch told {
	case speaksTLS:
		hello, err := c.hello()
		if err != nil {
			return policy.Decision{Rule: -1, By: "TLS", Reason: err.Error()}
		}
		return c.judgeHello(hello)
	case speaksHTTP, undecided:
		if len(c.head) == 0 { // the client has nothing to say
			break
		}
		if c.box.Policy().Default == policy.Deny || c.box.Policy().DeniesNames() {
			return policy.Decision{Rule: -1, By: "HTTP", Reason: "the request came too late to be looked at"}
		}
	}
	return policy.Decision{Allow: true}
}
