// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"casulo.dev/dataplane/internal/vault/redact"
)

// receive takes secrets out of an answer before any of it goes to the client, and writes it down.
func (p *Proxy) receive(r *http.Response) error {
	x := r.Request.Context().Value(exchangeKey{}).(*exchange)
	r.Status = fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode))
	x.clean(r.Header)
	x.clean(r.Trailer)
	if x.redacts {
		if no := x.lookInto(r); no != nil {
			return no
		}
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = &tail{ReadCloser: r.Body, of: r, x: x}
	}
	x.record("allow", r.StatusCode, fmt.Sprintf("answered %d", r.StatusCode))
	return nil
}

// clean takes secrets out of headers; one whose name holds a secret goes altogether.
func (x *exchange) clean(h http.Header) {
	if x.held == nil {
		return
	}
	secrets := x.secrets()
	for name, values := range h {
		if secrets.InName(name) {
			delete(h, name)
			continue
		}
		for i, value := range values {
			values[i] = secrets.Text(value)
		}
	}
}

// secrets are those of now, which include the ones of before: what comes back now may have been sent
// with another request since this one began.
func (x *exchange) secrets() *redact.Matcher {
	if now := x.conn.flow.Vault(); now != nil {
		return now.Secrets
	}
	return x.held.Secrets
}

// tail is a body whose end brings trailers, which are cleaned like headers.
type tail struct {
	io.ReadCloser
	of *http.Response
	x  *exchange
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if cut := t.of.Request.Context().Err(); cut != nil { // a server may end in good order what we broke off
		return n, cut
	}
	t.x.clean(t.of.Trailer)
	return n, err
}

// answer is where the reverse proxy writes to. What it adds is nothing, and what comes before the
// answer proper is cleaned too.
type answer struct {
	http.ResponseWriter
	x *exchange
}

// Unwrap gives the writer below to those who flush and take over connections.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	h := a.Header()
	if status < 200 {
		a.x.clean(h)
	} else {
		for _, name := range []string{"Content-Type", "Date"} { // which the server would add
			if _, sent := h[name]; !sent {
				h[name] = nil
			}
		}
	}
	a.ResponseWriter.WriteHeader(status)
}
