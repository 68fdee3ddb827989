// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
)

// conn is a sandbox's connection as the HTTP server sees it: what was read before comes first.
type conn struct {
	net.Conn
	reader io.Reader
	flow   *Flow
	pool   *pool

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
	if encrypted, ok := from.(*tls.Conn); ok {
		from = encrypted.NetConn()
	}
	return context.WithValue(ctx, connKey{}, from)
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
