// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package entry takes the TCP connections of sandboxes, which the packet filter leads here, finds out
// where each wants to go and under which name, and passes on what the policy allows. It decrypts
// nothing; connections to hosts that a vault binds go to an Interceptor instead.
package entry

import (
	"context"
	"errors"
	"log"
	"net"
	"net/netip"
	"time"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/front"
	"casulo.dev/dataplane/internal/egress/own"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/resolve"
	"casulo.dev/dataplane/internal/egress/sandbox"
)

const (
	firstBytes  = 10 * time.Second       // in which a client must speak where it speaks first
	courtesy    = 300 * time.Millisecond // in which it may speak first elsewhere
	connectTime = 10 * time.Second
)

// Entry serves one listening socket.
type Entry struct {
	registry *sandbox.Registry
	resolver *resolve.Resolver
	audit    *audit.Log
	dialer   net.Dialer

	// Interceptor takes over connections to hosts that a vault binds. Nil takes none.
	Interceptor Interceptor

	// Front takes connections to a sandbox's own gateway at the policy API's port. Nil takes none.
	Front *front.Front
}

// New serves the sandboxes of a registry.
func New(registry *sandbox.Registry, resolver *resolve.Resolver, log *audit.Log) *Entry {
	return &Entry{registry: registry, resolver: resolver, audit: log,
		dialer: net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second}}
}

// Through lets the sockets of this process's own connections be prepared.
func (e *Entry) Through(control own.Control) { e.dialer.Control = control }

// Serve returns when the listener is closed.
func (e *Entry) Serve(listener *net.TCPListener) error {
	for {
		client, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // out of descriptors, most likely
			log.Printf("event=accept_failed error=%q", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go e.accept(client)
	}
}

func (e *Entry) accept(client *net.TCPConn) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	box := e.registry.At(from)
	if box == nil {
		abort(client)
		return
	}
	c := &connection{entry: e, box: box, client: client, started: time.Now()}
	defer c.finish()
	destination, err := original(client)
	here := client.LocalAddr().(*net.TCPAddr).AddrPort()
	if err != nil || destination.Addr() == here.Addr().Unmap() && destination.Port() == here.Port() {
		c.refuse("tcp", policy.Decision{Rule: -1, By: "entry", Reason: "the entry is no destination"})
		return
	}
	c.query = policy.Query{Address: destination.Addr(), Port: destination.Port(), Protocol: policy.TCP}
	if reason := box.Track(c); reason != "" {
		c.refuse("tcp", policy.Decision{Rule: -1, By: "limits", Reason: reason})
		return
	}
	if e.Front != nil && destination == netip.AddrPortFrom(here.Addr().Unmap(), front.Port) {
		e.Front.Take(box.ID, box.TakeCall, client)
		return
	}
	c.run()
}

// belongs tells whether an address is one that the name resolves to, asking again when it is not
// remembered or soon forgotten.
func (e *Entry) belongs(box *sandbox.Sandbox, name string, address netip.Addr) bool {
	until, known := box.Knows(name, address)
	if known && time.Until(until) > renewal {
		return true
	}
	if known { // it is in use, so keep it open, but do not wait for that
		go func() {
			if _, err := e.verify(box, name, address); err != nil {
				log.Printf("event=refresh_failed name=%q error=%q", name, err)
			}
		}()
		return true
	}
	found, err := e.verify(box, name, address)
	return err == nil && found
}

const renewal = 40 * time.Second

func (e *Entry) verify(box *sandbox.Sandbox, name string, address netip.Addr) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	return e.resolver.Verify(ctx, box, name, address)
}

// abort answers a connection as a closed port would.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
