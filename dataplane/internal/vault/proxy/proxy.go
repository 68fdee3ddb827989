// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package proxy ends the TLS of bound hosts, looks at each request by itself, and sends it on with the
// credential that its binding names, over a connection whose other end was checked. It is a plain
// reverse proxy otherwise: bodies stream, and answers come back as they are but for secrets.
package proxy

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/own"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault"
)

const (
	handshakeTime = 20 * time.Second
	headTime      = 30 * time.Second
	idleTime      = 5 * time.Minute
	longestHead   = 64 << 10
	mostStreams   = 128
	streamWindow  = 256 << 10
	connWindow    = 512 << 10
)

// Flow is one connection of a sandbox that goes to a bound host.
type Flow struct {
	Sandbox     string
	Client      net.Conn
	Reader      io.Reader // what Client says, from its first byte
	Destination netip.AddrPort
	Name        string // the server name of TLS, canonical; "" for plain HTTP

	// Vault is what holds now.
	Vault func() *vault.Vault
	// Begin asks the policy about a request; cancel is called when a later one denies it. The
	// caller calls end when the request is over.
	Begin func(query Query, cancel func()) (decided policy.Decision, end func())
}

// Query is a request of which the policy is asked. Bound ones must go to an address of their name.
type Query struct {
	Name, Method, Path string
	Bound              bool
}

// Proxy serves the flows of all sandboxes.
type Proxy struct {
	audit   *audit.Log
	server  *http.Server
	forward *httputil.ReverseProxy
	queue   *queue
	pools   pools
}

// New writes what it decides to a log.
func New(log *audit.Log) *Proxy {
	p := &Proxy{audit: log, queue: newQueue(), pools: pools{known: map[string]*pool{}}}
	p.forward = &httputil.ReverseProxy{Rewrite: rewrite, Transport: carrier{}, ModifyResponse: p.receive,
		ErrorHandler: p.fail, ErrorLog: silent, BufferPool: &buffers{}}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		MaxHeaderBytes: longestHead, ErrorLog: silent, DisableGeneralOptionsHandler: true, ConnContext: withFlow, ConnState: p.follow,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: mostStreams, MaxReceiveBufferPerStream: streamWindow,
			MaxReceiveBufferPerConnection: connWindow}}
	go func() { _ = p.server.Serve(p.queue) }() // until Close, which is the only way in which it ends
	return p
}

// Through lets the sockets of this process's own connections be prepared.
func (p *Proxy) Through(control own.Control) { p.pools.control = control }

// silent keeps what the standard library says about requests out of the log: it quotes them.
var silent = log.New(io.Discard, "", 0)

// Close ends the serving of connections.
func (p *Proxy) Close() error { return p.server.Close() }

// Sweep closes what no connection uses any more.
func (p *Proxy) Sweep() { p.pools.sweep(time.Now()) }

// Serve returns when the connection has ended.
func (p *Proxy) Serve(f *Flow) {
	pool := p.pools.enter(f.Sandbox)
	if pool == nil {
		p.note(f, policy.Decision{Rule: -1, By: "limits", Reason: "too many open connections to bound hosts"})
		return
	}
	defer p.pools.leave(pool)
	taken := &conn{Conn: f.Client, reader: f.Reader, flow: f, pool: pool, closed: make(chan struct{})}
	if f.Name == "" {
		p.queue.push(taken)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
		defer cancel()
		ended, err := p.handshake(ctx, taken)
		if err != nil {
			p.note(f, policy.Decision{Rule: -1, By: "vault", Reason: err.Error()})
			return
		}
		p.queue.push(ended)
	}
	<-taken.closed
}

func (p *Proxy) note(f *Flow, decided policy.Decision) {
	record := audit.Record{Sandbox: f.Sandbox, Kind: "vault", Name: f.Name, Address: f.Destination.Addr().String(),
		Port: f.Destination.Port(), Protocol: "tcp"}
	p.audit.Write(record.Judged(decided))
}

// buffers are used again.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if known, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return known[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buffer []byte) {
	if len(buffer) == bufferSize {
		clear(buffer) // it held what a request or an answer held
		b.pool.Put((*[bufferSize]byte)(buffer))
	}
}
