// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
)

// refusal is an answer that this process gives itself. None of its words come from a server.
type refusal struct {
	status           int
	code, by, reason string
	close            bool
}

func (r *refusal) Error() string { return r.reason }

// refuse writes down why, and tells the client.
func (x *exchange) refuse(w http.ResponseWriter, no *refusal) {
	x.rule.By = no.by
	x.record("deny", no.status, no.reason)
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Casulo-Egress", "denied")
	h.Set("X-Casulo-Vault", no.code)
	if no.close || x.in.ProtoMajor == 1 {
		h.Set("Connection", "close") // under HTTP/2 it asks the client to go away
	}
	w.WriteHeader(no.status)
	_, _ = fmt.Fprintf(w, "casulo-egress: denied by %s: %s\n", no.by, no.reason) // the client may be gone
}

// fail answers for a server that did not.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	var no *refusal
	if !errors.As(err, &no) {
		no = &refusal{status: http.StatusBadGateway, code: "upstream", by: "vault", reason: plain(err)}
	}
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil && x.in.Context().Err() == nil {
		no = &refusal{status: http.StatusForbidden, code: "policy", by: "policy", reason: "the policy changed"}
	}
	x.refuse(w, no)
}

// plain says what is wrong in words of our own: an error of a protocol quotes what a server said, and
// a server may say what it was sent.
func plain(err error) string {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "the client left before there was an answer"
	case errors.As(err, &name):
		return "nothing was sent: the server's certificate is for another name"
	case errors.As(err, &unknown):
		return "nothing was sent: the server's certificate is signed by nobody who is trusted here"
	case errors.As(err, &invalid), errors.As(err, &certificate):
		return "nothing was sent: the server's certificate is not valid"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the server refused the connection"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the server cannot be reached"
	case errors.Is(err, errNoHTTP2):
		return err.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "the server did not answer in time"
	}
	return "the server broke off, or its answer was no HTTP"
}
