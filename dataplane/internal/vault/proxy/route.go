// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/egress/own"
)

const (
	connectTime  = 10 * time.Second
	upstreamIdle = 60 * time.Second
	keepsIdle    = 128 // connections to one server
	answerHead   = 256 << 10
	continueTime = 2 * time.Second
	spareTime    = 5 * time.Second // in which a connection made for a question is used
	rememberTime = 5 * time.Minute // what version a server speaks
)

// key is what connections to servers are shared by: nothing that was checked for one name, address
// or sandbox serves another.
type key struct {
	name        string
	destination netip.AddrPort
	tls         bool
}

// route is the way to one server.
type route struct {
	key
	roots  *x509.CertPool
	dialer net.Dialer
	one    *http.Transport
	two    *http.Transport

	mu    sync.Mutex
	spoke string
	since time.Time
	spare *tls.Conn
	made  time.Time
	used  time.Time
}

var errNoHTTP2 = errors.New("the server does not speak HTTP/2 any more")

func newRoute(k key, roots *x509.CertPool, control own.Control) *route {
	r := &route{key: k, roots: roots, dialer: net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second, Control: control}, used: time.Now()}
	r.one, r.two = r.transport(http1), r.transport(http2)
	return r
}

func (r *route) transport(version string) *http.Transport {
	made := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: keepsIdle, IdleConnTimeout: upstreamIdle,
		MaxResponseHeaderBytes: answerHead, ExpectContinueTimeout: continueTime, Protocols: &http.Protocols{},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.dialTLS(ctx, version)
		},
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connWindow}}
	made.Protocols.SetHTTP1(version == http1)
	made.Protocols.SetHTTP2(version == http2)
	return made
}

// dial goes to the address to which the sandbox was going, whatever the name resolves to here.
func (r *route) dial(ctx context.Context) (net.Conn, error) {
	return r.dialer.DialContext(ctx, "tcp", r.destination.String())
}

// dialTLS is a connection to a server that has shown a valid certificate of the name.
func (r *route) dialTLS(ctx context.Context, versions ...string) (*tls.Conn, error) {
	if spare := r.takeSpare(versions); spare != nil {
		return spare, nil
	}
	plain, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	encrypted := tls.Client(plain, &tls.Config{ServerName: r.name, RootCAs: r.roots, NextProtos: versions, MinVersion: tls.VersionTLS12})
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	if len(versions) == 1 && versions[0] == http2 && encrypted.ConnectionState().NegotiatedProtocol != http2 {
		r.forget()
		return nil, errors.Join(errNoHTTP2, encrypted.Close())
	}
	return encrypted, nil
}

func (r *route) takeSpare(versions []string) *tls.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	spare := r.spare
	if spare == nil || len(versions) != 1 || spoken(spare) != versions[0] {
		return nil
	}
	r.spare = nil
	if time.Since(r.made) > spareTime {
		_ = spare.Close()
		return nil
	}
	return spare
}

func spoken(c *tls.Conn) string {
	if c.ConnectionState().NegotiatedProtocol == http2 {
		return http2
	}
	return http1
}

// protocol is the version that the server chose when it was offered both; "" when it cannot be asked,
// which requests will find out by themselves.
func (r *route) protocol(ctx context.Context) string {
	r.mu.Lock()
	spoke, fresh := r.spoke, time.Since(r.since) < rememberTime
	r.mu.Unlock()
	if spoke != "" && fresh {
		return spoke
	}
	made, err := r.dialTLS(ctx, http2, http1)
	if err != nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spare != nil {
		_ = r.spare.Close()
	}
	r.spoke, r.since, r.spare, r.made = spoken(made), time.Now(), made, time.Now()
	return r.spoke
}

func (r *route) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke = ""
}

func (r *route) close() {
	r.mu.Lock()
	if r.spare != nil {
		_ = r.spare.Close()
		r.spare = nil
	}
	r.mu.Unlock()
	r.one.CloseIdleConnections()
	r.two.CloseIdleConnections()
}
