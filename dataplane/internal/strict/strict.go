// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package strict refuses two kinds of malformed requests that the HTTP server of the standard library repairs in
// silence: header lines that end in a bare LF, and bodies described by both Content-Length and Transfer-Encoding. A
// repaired request looks different to whoever stands before or behind us, which is how headers and whole requests are
// smuggled; the proxy inside the daemon must not be the place where that works.
//
// The server shows neither to a handler, so the bytes of each request's head are looked at on their way in. Nothing
// is kept but a few bytes per connection.
package strict

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"

	"casulo.dev/dataplane/internal/api"
)

// Listener makes connections that look at the requests they carry.
func Listener(inner net.Listener) net.Listener { return &listener{inner} }

type listener struct{ net.Listener }

func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := accepted.(*net.TCPConn); ok {
		return &tcpConn{TCPConn: tcp}, nil
	}
	return &otherConn{Conn: accepted}, nil
}

// tcpConn keeps the methods of a TCP connection that the server uses for sendfile.
type tcpConn struct {
	*net.TCPConn
	head head
}

func (c *tcpConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.head.feed(p[:max(n, 0)])
	return n, err
}

// Unwrap gives the connection itself to code that moves bytes and needs no head looked at any more.
func (c *tcpConn) Unwrap() net.Conn { return c.TCPConn }

func (c *tcpConn) requestHead() *head { return &c.head }

type otherConn struct {
	net.Conn
	head head
}

func (c *otherConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.head.feed(p[:max(n, 0)])
	return n, err
}

// Unwrap is the same as for TCP.
func (c *otherConn) Unwrap() net.Conn { return c.Conn }

func (c *otherConn) requestHead() *head { return &c.head }

type watched interface{ requestHead() *head }

type contextKey struct{}

// Protect makes a server refuse malformed requests that come through a Listener of this package.
func Protect(server *http.Server) {
	inner := server.Handler
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if w, ok := conn.(watched); ok {
			return context.WithValue(ctx, contextKey{}, w.requestHead())
		}
		return ctx
	}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		// Between two requests nobody reads from the connection.
		if w, ok := conn.(watched); ok && state == http.StateIdle {
			w.requestHead().restart()
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, ok := r.Context().Value(contextKey{}).(*head); ok {
			if fault := h.faultOf(r); fault != "" {
				w.Header().Set("Connection", "close")
				api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, fault)
				return
			}
		}
		inner.ServeHTTP(w, r)
	})
}

var _ io.ReaderFrom = (*tcpConn)(nil)

// requestLine is how the first line of a request looked, as far as we keep it.
func requestLine(r *http.Request) string {
	line := strings.Join([]string{r.Method, r.RequestURI, r.Proto}, " ")
	return line[:min(len(line), maxLine)]
}
