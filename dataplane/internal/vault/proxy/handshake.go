// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"

	"casulo.dev/dataplane/internal/egress/policy"
)

const (
	http1 = "http/1.1"
	http2 = "h2"
)

var (
	errNoVault   = errors.New("the vault changed while the connection was opened")
	errName      = errors.New("the server name changed during the handshake")
	errHandshake = errors.New("the TLS handshake with the client failed; does it trust the sandbox's authority?")
)

// handshake speaks TLS to the client in the server's stead, and the same version of HTTP that the
// real server speaks.
func (p *Proxy) handshake(ctx context.Context, c *conn) (*tls.Conn, error) {
	var refused error
	config := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		var own *tls.Config
		own, refused = p.configFor(ctx, c, hello)
		return own, refused
	}
	encrypted := tls.Server(c, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		if refused != nil {
			return nil, refused
		}
		return nil, errHandshake
	}
	return encrypted, nil
}

func (p *Proxy) configFor(ctx context.Context, c *conn, hello *tls.ClientHelloInfo) (*tls.Config, error) {
	name, err := policy.Canonical(hello.ServerName)
	if err != nil || name != c.flow.Name {
		return nil, errName
	}
	held := c.flow.Vault()
	if held == nil {
		return nil, errNoVault
	}
	certificate, err := held.Authority.For(name)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, Certificates: []tls.Certificate{*certificate}}
	if len(hello.SupportedProtos) > 0 {
		config.NextProtos = []string{p.speaks(ctx, c, held.Roots, hello.SupportedProtos)}
	}
	return config, nil
}

// speaks is the version of HTTP for a client, which is the server's own choice where there is one.
func (p *Proxy) speaks(ctx context.Context, c *conn, roots *x509.CertPool, offered []string) string {
	if !slices.Contains(offered, http2) {
		return http1
	}
	if r := c.pool.route(key{c.flow.Name, c.flow.Destination, true}, roots); r.protocol(ctx) == http2 || !slices.Contains(offered, http1) {
		return http2
	}
	return http1
}
