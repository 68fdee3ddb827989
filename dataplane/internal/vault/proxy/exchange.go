// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault"
)

// exchange is one request and its answer.
type exchange struct {
	proxy       *Proxy
	conn        *conn
	in          *http.Request
	held        *vault.Vault // as it was when the request began; nil when there is none
	destination vault.Destination
	binding     *vault.Binding // nil when the request gets nothing
	path        string         // for the log
	rule        policy.Decision
	redacts     bool
	refused     *refusal
	noted       atomic.Bool
}

type exchangeKey struct{}

// serve is the handler of every request on every connection that was taken.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	x := &exchange{proxy: p, conn: r.Context().Value(connKey{}).(*conn), in: r}
	x.conn.served.Add(1)
	defer x.contain()
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), exchangeKey{}, x))
	defer cancel()
	if !x.conn.pool.enter() {
		x.refuse(w, &refusal{status: http.StatusServiceUnavailable, code: "too-many-requests", by: "limits", reason: "too many requests at once"})
		return
	}
	defer x.conn.pool.leave()
	x.held = x.conn.flow.Vault()
	if no := x.identify(); no != nil {
		x.refuse(w, no)
		return
	}
	decided, end := x.conn.flow.Begin(Query{x.destination.Name, r.Method, r.RequestURI, x.isBound()}, cancel)
	defer end()
	x.rule = decided
	if !decided.Allow {
		x.refuse(w, &refusal{status: http.StatusForbidden, code: "policy", by: decided.By, reason: decided.Reason})
		return
	}
	if no := x.choose(); no != nil {
		x.refuse(w, no)
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 is so anyway
	p.forward.ServeHTTP(&answer{ResponseWriter: w, x: x}, r.WithContext(ctx))
}

// contain ends the request alone when something in here is broken, and writes nothing of its data.
func (x *exchange) contain() {
	found := recover()
	if found == nil {
		return
	}
	if found != http.ErrAbortHandler {
		log.Printf("event=panic kind=%T at=%s", found, where())
		x.record("deny", 0, "an internal error ended the request")
	}
	panic(http.ErrAbortHandler)
}

func where() string {
	counters := make([]uintptr, 16)
	frames := runtime.CallersFrames(counters[:runtime.Callers(4, counters)])
	var names []string
	for {
		frame, more := frames.Next()
		names = append(names, fmt.Sprintf("%s:%d", frame.Function, frame.Line))
		if !more {
			return strings.Join(names, " ")
		}
	}
}

func (x *exchange) isBound() bool { return x.held.Binds(x.destination) }

// identify finds out where a request goes. Under TLS that is the name whose certificate is checked,
// and the request must say the same.
func (x *exchange) identify() *refusal {
	f := x.conn.flow
	name, port, err := splitAuthority(x.in.Host)
	x.destination = vault.Destination{Name: name, Port: f.Destination.Port(), TLS: f.Name != ""}
	x.path = pathOf(x.in.RequestURI)
	switch {
	case err != "":
		x.destination.Name = f.Name
		return &refusal{status: http.StatusForbidden, code: "authority", by: "vault", reason: err}
	case x.in.Method == http.MethodConnect:
		return &refusal{status: http.StatusForbidden, code: "method", by: "vault", reason: "CONNECT is for proxies"}
	case x.destination.TLS && name != f.Name:
		status := http.StatusForbidden
		if x.in.ProtoMajor == 2 {
			status = http.StatusMisdirectedRequest
		}
		return &refusal{status: status, code: "authority", by: "vault", reason: fmt.Sprintf(
			"the request names %.80q on a connection to %s", name, f.Name)}
	case port != 0 && port != f.Destination.Port():
		return &refusal{status: http.StatusForbidden, code: "authority", by: "vault", reason: fmt.Sprintf(
			"the request names port %d on a connection to port %d", port, f.Destination.Port())}
	case x.destination.TLS && !x.isBound():
		return &refusal{status: http.StatusMisdirectedRequest, code: "unbound", by: "vault", close: true, reason: f.Name +
			" is not bound to a credential any more; connect again"}
	case !strings.HasPrefix(x.in.RequestURI, "/"):
		return &refusal{status: http.StatusForbidden, code: "target", by: "vault", reason: "the target of the request is no path"}
	}
	return nil
}

func pathOf(target string) string {
	path, _, _ := strings.Cut(target, "?")
	return path
}

func splitAuthority(host string) (name string, port uint16, fault string) {
	if text, number, err := net.SplitHostPort(host); err == nil {
		parsed, err := strconv.ParseUint(number, 10, 16)
		if err != nil || number[0] == '+' {
			return "", 0, "the request names no valid port"
		}
		host, port = text, uint16(parsed)
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", port, ""
	}
	name, err := policy.Canonical(host)
	if err != nil || !isASCII(host) {
		return "", 0, "the request names no valid host"
	}
	return name, port, ""
}

func isASCII(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c >= 0x80 }) < 0
}

// choose finds the binding, if the request is one that has any.
func (x *exchange) choose() *refusal {
	if !x.isBound() {
		return nil
	}
	path, err := vault.NormalPath(pathOf(x.in.RequestURI))
	if err != nil {
		return &refusal{status: http.StatusForbidden, code: "path", by: "vault", reason: err.Error()}
	}
	x.path = path.Text
	x.redacts = x.held.RedactsBodies(x.destination)
	if x.binding, err = x.held.Find(x.destination, x.in.Method, path); err != nil {
		return &refusal{status: http.StatusForbidden, code: "ambiguous", by: "vault", reason: err.Error()}
	}
	if x.binding != nil && x.binding.Lacks != "" {
		return &refusal{status: http.StatusBadGateway, code: "credential", by: "vault", reason: fmt.Sprintf(
			"the value of the credential %q cannot be read where it comes from", x.binding.Lacks)}
	}
	return nil
}

const longestNoted = 512

// record writes what became of the request, once.
func (x *exchange) record(decision string, status int, reason string) {
	if x.noted.Swap(true) {
		return
	}
	f := x.conn.flow
	noted := audit.Record{Sandbox: f.Sandbox, Kind: "vault", Decision: decision, Name: x.destination.Name,
		Address: f.Destination.Addr().String(), Port: f.Destination.Port(), Protocol: "tcp", Method: fmt.Sprintf("%.32s", x.in.Method),
		Path: fmt.Sprintf("%.*s", longestNoted, x.path), Rule: x.rule.By, Reason: reason, Status: status}
	if x.binding != nil {
		noted.Binding = x.binding.Name
	}
	x.proxy.audit.Write(noted)
}
