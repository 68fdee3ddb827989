// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"casulo.dev/dataplane/internal/egress/policy"
)

// conn is a sandbox's connection as the HTTP server sees it: what was read before comes first.
type conn struct {
	net.Conn
	reader io.Reader
	flow   *Flow
	pool   *pool

	begun  atomic.Int64 // requests of which something came
	served atomic.Int64 // and those that could be read
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Read(p []byte) (int, error) { return c.reader.Read(p) }

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// CloseWrite is a clean end of what is sent.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type connKey struct{}

// withFlow lets requests find the connection on which they came.
func withFlow(ctx context.Context, from net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, within(from))
}

// within is our connection inside the server's.
func within(from net.Conn) *conn {
	if encrypted, ok := from.(*tls.Conn); ok {
		from = encrypted.NetConn()
	}
	return from.(*conn)
}

// follow notes requests of HTTP/1 that the server refuses by itself, because they are none. Streams of
// HTTP/2 that are none break off without an answer.
func (p *Proxy) follow(from net.Conn, state http.ConnState) {
	if encrypted, ok := from.(*tls.Conn); ok && spoken(encrypted) == http2 {
		return
	}
	c := within(from)
	switch state {
	case http.StateActive:
		c.begun.Add(1)
	case http.StateClosed:
		if c.begun.Load() > c.served.Load() {
			p.note(c.flow, policy.Decision{Rule: -1, By: "HTTP", Reason: "what the client sent cannot be read as a request, or is not whole"})
		}
	}
}

// queue hands connections to the HTTP server, which believes that they come from a listener.
type queue struct {
	waiting chan net.Conn
	once    sync.Once
	ended   chan struct{}
}

func newQueue() *queue { return &queue{waiting: make(chan net.Conn), ended: make(chan struct{})} }

func (q *queue) push(c net.Conn) {
	select {
	case q.waiting <- c:
	case <-q.ended:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.waiting:
		return c, nil
	case <-q.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.ended) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return &net.UnixAddr{Name: "vault", Net: "unix"} }
