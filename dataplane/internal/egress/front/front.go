// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package front passes requests for the policy API, which sandboxes and the daemons in them find at
// their gateway's port 18080, on to the server. Whose policy it is about is told by the connection.
// The server asks for the sandbox's token, as it does of everybody.
package front

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Port is where the API is found.
const Port = 18080

const (
	headTime    = 10 * time.Second
	wholeTime   = 60 * time.Second
	longestBody = 4 << 20
)

// Front is one HTTP server whose connections are brought to it.
type Front struct {
	note   string // file in which the server says where it is
	conns  chan net.Conn
	server *http.Server
	proxy  *httputil.ReverseProxy
}

// New finds the server by the note that it keeps.
func New(note string) *Front {
	f := &Front{note: note, conns: make(chan net.Conn)}
	f.proxy = &httputil.ReverseProxy{Rewrite: f.rewrite, ErrorHandler: failed}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: headTime, ReadTimeout: wholeTime, IdleTimeout: headTime,
		MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, whose{}, conn.(*brought))
		}}
	return f
}

type whose struct{}

// brought is a connection that says when it is closed.
type brought struct {
	net.Conn
	id   string
	may  func() bool
	once sync.Once
	done chan struct{}
}

// Close implements net.Conn.
func (b *brought) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Conn.Close()
}

// Take serves a connection of a sandbox, and returns when it is closed. `may` bounds its requests.
func (f *Front) Take(id string, may func() bool, conn net.Conn) {
	one := &brought{Conn: conn, id: id, may: may, done: make(chan struct{})}
	f.conns <- one
	<-one.done
}

// Serve runs for as long as the process.
func (f *Front) Serve() error { return f.server.Serve(f) }

// Accept implements net.Listener.
func (f *Front) Accept() (net.Conn, error) { return <-f.conns, nil }

// Close implements net.Listener; there is nothing to close.
func (f *Front) Close() error { return nil }

// Addr implements net.Listener.
func (f *Front) Addr() net.Addr { return &net.TCPAddr{Port: Port} }

// ServeHTTP implements http.Handler: nothing but the API's own paths goes further.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	known := path == "/healthz" || path == "/policy" || path == "/credential-vault" || strings.HasPrefix(path, "/credential-vault/")
	if !known || strings.Contains(r.URL.Path, "..") || r.Header.Get("Upgrade") != "" {
		http.Error(w, "there is no such thing here", http.StatusNotFound)
		return
	}
	if !r.Context().Value(whose{}).(*brought).may() {
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, longestBody)
	base, err := f.base()
	if err != nil {
		failed(w, r, err)
		return
	}
	f.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), where{}, base)))
}

type where struct{}

// base is where the server listens now. It may have been started again since the last request.
func (f *Front) base() (*url.URL, error) {
	content, err := os.ReadFile(f.note)
	if err != nil {
		return nil, err
	}
	var told struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(content, &told); err != nil {
		return nil, err
	}
	base, err := url.Parse(told.URL)
	if err != nil || base.Host == "" {
		return nil, errors.New("the server does not say where it is")
	}
	if ip := net.ParseIP(base.Hostname()); ip != nil && ip.IsUnspecified() {
		base.Host = net.JoinHostPort("127.0.0.1", base.Port())
	}
	return base, nil
}

func (f *Front) rewrite(r *httputil.ProxyRequest) {
	base, id := r.In.Context().Value(where{}).(*url.URL), r.In.Context().Value(whose{}).(*brought).id
	prefix := "/v1/sandboxes/" + url.PathEscape(id) + "/proxy/18080"
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = base.Scheme, base.Host, base.Host
	r.Out.URL.RawPath = prefix + r.In.URL.EscapedPath()
	r.Out.URL.Path = prefix + r.In.URL.Path
}

func failed(w http.ResponseWriter, _ *http.Request, err error) {
	log.Printf("event=server_not_reached error=%q", err)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "the server does not answer\n")
}
