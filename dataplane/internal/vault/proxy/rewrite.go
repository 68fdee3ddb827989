// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
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
	out.URL = x.address()
	out.Host = r.In.Host
	if x.binding != nil {
		inject.Headers(out, x.binding)
	}
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
func (x *exchange) address() *url.URL {
	path, query, asked := strings.Cut(x.in.RequestURI, "?")
	made := &url.URL{Scheme: "http", Host: x.conn.flow.Destination.String(), RawQuery: query, ForceQuery: asked && query == ""}
	if x.destination.TLS {
		made.Scheme = "https"
	}
	if strings.HasPrefix(path, "//") { // as an opaque part it would be taken for a host
		made.Path, made.RawPath = x.in.URL.Path, path
	} else {
		made.Opaque = path
	}
	return made
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
