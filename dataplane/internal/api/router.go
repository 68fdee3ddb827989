// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package api owns the edge of the daemon: which request needs the token, how it reaches its
// handler, and how answers and errors look on the wire. Feature packages register on a Router.
package api

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
)

// TokenHeader carries the sandbox's access token.
const TokenHeader = "X-EXECD-ACCESS-TOKEN"

// Router matches requests to handlers. It never redirects, and it answers every miss in JSON.
type Router struct {
	token    atomic.Pointer[string]
	open     *http.ServeMux
	guarded  *http.ServeMux
	prefixes []prefixRoute
}

type prefixRoute struct {
	prefix  string
	handler http.Handler
}

// NewRouter makes an empty router. With an empty token every route is open.
func NewRouter(token string) *Router {
	r := &Router{open: http.NewServeMux(), guarded: http.NewServeMux()}
	r.SetToken(token)
	return r
}

// SetToken replaces the token, for a sandbox that became another one.
func (r *Router) SetToken(token string) { r.token.Store(&token) }

// Handle registers a route that needs the token. Patterns are those of http.ServeMux, without host.
func (r *Router) Handle(pattern string, handler http.HandlerFunc) {
	r.guarded.HandleFunc(pattern, handler)
}

// Open registers a route that anybody may call.
func (r *Router) Open(pattern string, handler http.HandlerFunc) {
	r.open.HandleFunc(pattern, handler)
}

// Prefix registers a handler that needs the token and gets every path below prefix exactly as it
// was sent: not cleaned, not decoded, not matched by method. Prefix must end with a slash.
func (r *Router) Prefix(prefix string, handler http.Handler) {
	r.prefixes = append(r.prefixes, prefixRoute{prefix, handler})
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if handler := r.prefixed(req); handler != nil {
		if r.admitted(w, req) {
			handler.ServeHTTP(w, req)
		}
		return
	}
	req = withCleanPath(req)
	if _, pattern := r.open.Handler(req); pattern != "" {
		r.open.ServeHTTP(w, req)
		return
	}
	if !r.admitted(w, req) {
		return
	}
	if _, pattern := r.guarded.Handler(req); pattern == "" {
		r.miss(w, req)
	} else if hasReadableQuery(w, req) {
		r.guarded.ServeHTTP(w, req)
	}
}

// hasReadableQuery refuses a query with a part that nobody could read. The handlers would not see that
// part at all, and do something else than they were asked for.
func hasReadableQuery(w http.ResponseWriter, req *http.Request) bool {
	_, err := url.ParseQuery(req.URL.RawQuery)
	if err == nil {
		return true
	}
	WriteError(w, http.StatusBadRequest, CodeInvalidRequest,
		"the query is malformed (percent-encode what is no plain character): "+err.Error())
	return false
}

func (r *Router) prefixed(req *http.Request) http.Handler {
	for _, route := range r.prefixes {
		if strings.HasPrefix(req.URL.EscapedPath(), route.prefix) {
			return route.handler
		}
	}
	return nil
}

// admitted checks the token in constant time and writes the refusal itself.
func (r *Router) admitted(w http.ResponseWriter, req *http.Request) bool {
	given, token := req.Header.Get(TokenHeader), *r.token.Load()
	if token == "" || subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1 {
		return true
	}
	WriteError(w, http.StatusUnauthorized, CodeUnauthenticated,
		"the header "+TokenHeader+" does not hold this sandbox's access token")
	return false
}

// miss tells an unknown path from a known path with another method.
func (r *Router) miss(w http.ResponseWriter, req *http.Request) {
	probe := &statusProbe{header: http.Header{}}
	handler, _ := r.guarded.Handler(req)
	handler.ServeHTTP(probe, req)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		WriteError(w, probe.status, CodeInvalidRequest, req.Method+" is not allowed on "+req.URL.Path)
		return
	}
	WriteError(w, http.StatusNotFound, CodeNotFound, "no such route: "+req.Method+" "+req.URL.Path)
}

// withCleanPath spares the mux from redirecting: clients of this API do not follow redirects.
func withCleanPath(req *http.Request) *http.Request {
	clean := path.Clean("/" + req.URL.Path)
	if clean == req.URL.Path {
		return req
	}
	copied, location := *req, *req.URL
	location.Path, location.RawPath = clean, ""
	copied.URL = &location
	return &copied
}

// statusProbe swallows an answer and remembers its status.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *statusProbe) WriteHeader(status int)      { p.status = status }
