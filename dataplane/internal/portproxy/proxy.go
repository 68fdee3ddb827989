// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package portproxy owns /proxy/{port}/…: it passes HTTP and upgraded connections on to a server that listens on the
// sandbox's loopback, and changes as little as possible. Path and query go on byte for byte, bodies are neither
// decoded nor buffered, repeated headers stay repeated, and every piece is delivered when it comes.
//
// What does change: the application sees the host "localhost:<port>", because development servers and browser debug
// ports refuse names they do not know; the caller's own host, scheme and address are in X-Forwarded-Host, -Proto and
// -For, which are left alone when a proxy before us has set them. The credentials of our own planes are taken out.
// An absolute Location that names that made-up host becomes relative to the root.
package portproxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/api"
)

const (
	prefix      = "/proxy/"
	dialTimeout = 5 * time.Second
	// Shorter than what common servers keep an idle connection for, so that none is reused while it is being closed.
	idleTimeout       = 2 * time.Second
	idlePerPort       = 8
	idleInAll         = 64
	maxResponseHeader = 1 << 20
	copyBuffer        = 64 << 10
)

// Service is the reverse proxy.
type Service struct {
	ownPorts  map[int]bool
	pooled    *http.Transport // for requests that may be sent twice
	separate  *http.Transport // for all others: a connection of their own
	buffers   sync.Pool
	dialer    net.Dialer
	addresses []string
}

// New makes the proxy. On the daemon's own ports the access token is passed on, so that the daemon can be reached
// through itself.
func New(ownPorts ...int) *Service {
	s := &Service{ownPorts: map[int]bool{}, dialer: net.Dialer{Timeout: dialTimeout}, addresses: []string{"127.0.0.1", "::1"}}
	for _, port := range ownPorts {
		s.ownPorts[port] = true
	}
	s.buffers.New = func() any { buffer := make([]byte, copyBuffer); return &buffer }
	s.pooled = s.transport(idlePerPort)
	s.separate = s.transport(-1)
	return s
}

func (s *Service) transport(idle int) *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, address string) (net.Conn, error) { return s.dial(ctx, address) },
		DisableCompression:     true,
		MaxIdleConns:           idleInAll,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		WriteBufferSize:        copyBuffer,
		ReadBufferSize:         copyBuffer,
	}
}

// Routes registers the proxy for every path below its prefix.
func (s *Service) Routes(router *api.Router) { router.Prefix(prefix, s) }

// placesOf are the hosts at which a port may be found.
func (s *Service) placesOf(port string) []string {
	if port != policyPort {
		return s.addresses
	}
	if host := gateway(); host != "" {
		return append(slices.Clone(s.addresses), host)
	}
	return s.addresses
}

// dial tries both loopback addresses: a server may listen on either.
func (s *Service) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	for _, host := range s.placesOf(port) {
		var failure error
		if conn, failure = s.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); failure == nil {
			return conn, nil
		}
		if err == nil {
			err = failure
		}
		if !errors.Is(failure, syscall.ECONNREFUSED) {
			break
		}
	}
	return nil, err
}

// target is where a request goes.
type target struct {
	port int
	host string // as the application sees it
	path string // raw, with the leading slash
}

// targetOf reads the raw path, which starts with the prefix.
func targetOf(raw string) (target, bool) {
	digits, rest, _ := strings.Cut(strings.TrimPrefix(raw, prefix), "/")
	port, err := strconv.Atoi(digits)
	if err != nil || port < 1 || port > 65535 || digits != strconv.Itoa(port) {
		return target{}, false
	}
	return target{port, "localhost:" + digits, "/" + rest}, true
}

// rawPath is the path as it came. The parsed form would normalise some escapes.
func rawPath(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		p, _, _ := strings.Cut(r.RequestURI, "?")
		return p
	}
	return r.URL.EscapedPath() // absolute form
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, ok := targetOf(rawPath(r))
	if !ok {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, "the path must begin with /proxy/ and a port from 1 to 65535")
		return
	}
	out := s.outgoing(r, to)
	if isUpgrade(r) {
		s.tunnel(w, r, out, to)
		return
	}
	// The application may answer before it has read everything; HTTP/1 servers do not expect that by themselves.
	_ = http.NewResponseController(w).EnableFullDuplex() // not offered by every connection, and then not needed
	s.forward(w, r, out, to)
}

func (s *Service) forward(w http.ResponseWriter, r *http.Request, out *http.Request, to target) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	body := newRequestBody(r)
	if out.Body != http.NoBody {
		out.Body = body
	} else {
		body.ended = true
	}
	response, err := s.transportFor(out).RoundTrip(out.WithContext(ctx))
	if !body.complete() {
		w.Header().Set("Connection", "close")
	}
	if err != nil {
		s.badGateway(w, r, to, err)
	} else {
		defer closeBody(response.Body)
		s.relay(w, r, response, to)
	}
	cancel()
	body.settle(w)
}

// transportFor keeps requests that must not be sent twice off connections that may be closing.
func (s *Service) transportFor(r *http.Request) *http.Transport {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		if r.Body == nil || r.Body == http.NoBody {
			return s.pooled
		}
	}
	return s.separate
}

// outgoing is the request as the application gets it.
func (s *Service) outgoing(r *http.Request, to target) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: outgoingURL(r, to), Host: to.host, Header: s.requestHeader(r, to),
		Body: r.Body, ContentLength: r.ContentLength, Trailer: r.Trailer,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if r.ContentLength == 0 && len(r.TransferEncoding) == 0 {
		out.Body = http.NoBody
	}
	return out
}

// outgoingURL carries the raw path. The opaque form is written to the wire as it is, except that two slashes at its
// start would be taken for a host; those paths go the normal way.
func outgoingURL(r *http.Request, to target) *url.URL {
	u := &url.URL{Scheme: "http", Host: to.host, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
	if !strings.HasPrefix(to.path, "//") {
		u.Opaque = to.path
		return u
	}
	u.Path, u.RawPath = to.path, to.path
	if decoded, err := url.PathUnescape(to.path); err == nil {
		u.Path = decoded
	}
	return u
}

// FaultHeader tells a proxy in front of this one that the answer is ours, and why: "connect" when
// nobody listens, "response" when somebody listens and does not speak HTTP.
const FaultHeader = "Execd-Proxy-Fault"

func faultOf(err error) string {
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Op == "dial" {
		return "connect"
	}
	return "response"
}

// badGateway answers for an application that cannot be reached or speaks no HTTP.
func (s *Service) badGateway(w http.ResponseWriter, r *http.Request, to target, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the caller left
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // nobody listens yet: callers poll for that, the log need not
		log.Printf("event=proxy_failed port=%d error=%q", to.port, err)
	}
	header := w.Header()
	header.Set(FaultHeader, faultOf(err))
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Length", strconv.Itoa(len("Bad Gateway")))
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "Bad Gateway") // a caller who left meanwhile misses nothing
}

func closeBody(body io.Closer) {
	// Closing an unread body closes its connection, which is what is wanted then; there is nothing to report.
	_ = body.Close()
}
