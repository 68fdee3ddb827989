// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"casulo.dev/dataplane/internal/vault/inject"
)

// rewrite makes the request for the server out of the client's, which comes without the headers that
// are for one connection only.
func rewrite(r *httputil.ProxyRequest) {
	x := r.In.Context().Value(exchangeKey{}).(*exchange)
	out := r.Out
	keepForwarded(r)
	onlyWebSocket(out.Header)
	out.Header.Del("Host")
	out.Host = r.In.Host
	target := r.In.RequestURI
	if x.isBound() {
		out.Host = x.authority()
		target = x.fill(out)
	}
	if out.Body != nil && len(out.Trailer) > 0 {
		out.Body = &trailing{ReadCloser: out.Body, in: r.In, out: out}
	}
	out.URL = x.address(target)
}

// authority is the host in one spelling, whatever the client's was.
func (x *exchange) authority() string {
	if _, port, err := net.SplitHostPort(x.in.Host); err == nil {
		return net.JoinHostPort(x.destination.Name, port)
	}
	return x.destination.Name
}

// trailing passes the trailers on that come after a body, those alone that were announced and kept.
type trailing struct {
	io.ReadCloser
	in, out *http.Request
}

func (t *trailing) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name := range t.out.Trailer {
			t.out.Trailer[name] = t.in.Trailer[name]
		}
	}
	return n, err
}

// fill puts in what the vault has for a request; what goes wrong is found out before it is sent.
func (x *exchange) fill(out *http.Request) (target string) {
	if x.redacts {
		askPlain(out.Header)
	}
	if x.binding != nil {
		if by := inject.Overridden(out.Header, x.binding.AllowsMethod); by != "" {
			x.refused = &refusal{status: http.StatusForbidden, code: "override", by: "vault", reason: "the header " + by +
				" would make another request of this one"}
			return x.in.RequestURI
		}
	}
	target, err := inject.Head(x.held, x.binding, x.in.RequestURI, out.Header)
	if err != nil {
		x.refused = &refusal{status: http.StatusForbidden, code: "placeholder", by: "vault", reason: err.Error()}
		return x.in.RequestURI
	}
	if err := inject.Body(out, x.binding); err != nil {
		x.refused = &refusal{status: http.StatusUnsupportedMediaType, code: "body", by: "vault", reason: err.Error()}
		return x.in.RequestURI
	}
	if x.binding != nil {
		inject.Headers(out, x.binding)
	}
	return target
}

// keepForwarded puts back what a reverse proxy would own; here it is the client's to say.
func keepForwarded(r *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, sent := r.In.Header[name]; sent {
			r.Out.Header[name] = values
		}
	}
}

// onlyWebSocket takes back offers of other protocols, in which further requests could hide.
func onlyWebSocket(h http.Header) {
	if h.Get("Upgrade") != "" && !strings.EqualFold(h.Get("Upgrade"), "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
		h.Del("Http2-Settings")
	}
}

// address keeps the target byte for byte.
func (x *exchange) address(target string) *url.URL {
	path, query, asked := strings.Cut(target, "?")
	made := &url.URL{Scheme: "http", Host: x.conn.flow.Destination.String(), RawQuery: query, ForceQuery: asked && query == ""}
	if x.destination.TLS {
		made.Scheme = "https"
	}
	if strings.HasPrefix(path, "//") { // as an opaque part it would be taken for a host
		made.Path, made.RawPath = unescaped(path), path
	} else {
		made.Opaque = path
	}
	return made
}

func unescaped(path string) string {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return path // the server has read it before, so it has no such fault
	}
	return plain
}

// carrier sends each request over its own route.
type carrier struct{}

func (carrier) RoundTrip(out *http.Request) (*http.Response, error) {
	x := out.Context().Value(exchangeKey{}).(*exchange)
	if x.refused != nil {
		return nil, x.refused
	}
	k := key{x.destination.Name, x.conn.flow.Destination, x.destination.TLS}
	if !k.tls {
		return x.conn.pool.route(k, nil).one.RoundTrip(out)
	}
	r := x.conn.pool.route(k, x.held.Roots)
	if x.in.ProtoMajor == 2 {
		return r.two.RoundTrip(out)
	}
	return r.one.RoundTrip(out)
}
