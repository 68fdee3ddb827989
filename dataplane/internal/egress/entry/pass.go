// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"errors"
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

// passLate is for protocols that tell no name at once. What the client says is passed on while it is
// looked at: a name that turns up must be an allowed one, however late, and a request for a page is
// cut off before it is complete.
func (c *connection) passLate() {
	var both sync.WaitGroup
	both.Go(func() { c.move(c.client, c.upstream, &c.down) })
	defer both.Wait()
	sent := 0
	told := classify(c.head)
	for told == undecided {
		if !c.forward(&sent) {
			return
		}
		if err := c.more(); errors.Is(err, errNoRoom) {
			told = speaksHTTP // what begins like a request and has no end
		} else if err != nil {
			break
		} else {
			told = classify(c.head)
		}
	}
	if decided := c.judgeLate(told); !decided.Allow {
		c.note("tcp", decided)
		c.End()
		return
	}
	if c.forward(&sent) {
		c.move(c.upstream, c.client, &c.up)
	}
}

// forward passes on what of the head was not passed on yet.
func (c *connection) forward(sent *int) bool {
	if *sent < len(c.head) {
		if _, err := c.upstream.Write(c.head[*sent:]); err != nil {
			c.End()
			return false
		}
		c.mu.Lock()
		c.up += int64(len(c.head) - *sent)
		c.mu.Unlock()
		*sent = len(c.head)
	}
	return true
}

func (c *connection) judgeLate(told kind) policy.Decision {
	switch told {
	case speaksTLS:
		hello, err := c.hello()
		if err != nil {
			return policy.Decision{Rule: -1, By: "TLS", Reason: err.Error()}
		}
		return c.judgeHello(hello)
	case speaksHTTP:
		if c.box.Policy().Default == policy.Deny || c.box.Policy().DeniesNames() {
			return policy.Decision{Rule: -1, By: "HTTP", Reason: "the request came too late to be looked at"}
		}
	}
	return policy.Decision{Allow: true}
}
