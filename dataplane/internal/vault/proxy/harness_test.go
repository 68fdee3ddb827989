// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault"
)

const (
	host   = "api.bound.test"
	secret = "sk-Live_0123456789/abc+DEF=="
)

// authority signs certificates in tests.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	text        string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(240 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{parsed, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

func (a *authority) keyText(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (a *authority) sign(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// stage is a proxy between one sandbox and one server.
type stage struct {
	t       testing.TB
	proxy   *Proxy
	inside  *authority // what the sandbox trusts
	outside *authority // what the proxy trusts
	log     *audit.Log
	path    string
	server  *httptest.Server
	address atomic.Pointer[netip.AddrPort]
	entry   net.Listener
	held    atomic.Pointer[vault.Vault]
	policy  atomic.Pointer[policy.Policy]
	cancels chan func()
	sni     atomic.Pointer[string]
	seen    chan *http.Request // what the server got, its body read already
	revised int64
}

func newStage(t testing.TB, handler http.Handler) *stage {
	t.Helper()
	s := &stage{t: t, inside: newAuthority(t, "sandbox"), outside: newAuthority(t, "world"),
		path: filepath.Join(t.TempDir(), "audit"), cancels: make(chan func(), 10000), seen: make(chan *http.Request, 10000)}
	var err error
	if s.log, err = audit.Open(s.path, 1<<30, 1); err != nil {
		t.Fatal(err)
	}
	s.proxy = New(s.log)
	s.server = httptest.NewUnstartedServer(handler)
	s.server.Config.ErrorLog = silent
	s.server.EnableHTTP2 = true
	s.server.TLS = &tls.Config{Certificates: []tls.Certificate{s.outside.sign(t, host, "other.bound.test", "*.wild.test")}}
	s.server.StartTLS()
	s.serve(s.server.Listener)
	s.setPolicy(`{"defaultAction": "allow"}`)
	s.setSNI(host)
	if s.entry, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	go s.accept()
	t.Cleanup(func() {
		s.entry.Close()
		s.proxy.Close()
		s.server.CloseClientConnections()
		s.server.Close()
		s.log.Close()
	})
	return s
}

// serve makes a listener the server to which the sandbox goes.
func (s *stage) serve(listener net.Listener) {
	address := listener.Addr().(*net.TCPAddr).AddrPort()
	s.address.Store(&address)
}

func (s *stage) serves() netip.AddrPort { return *s.address.Load() }

func (s *stage) setSNI(name string) { s.sni.Store(&name) }

func (s *stage) setPolicy(text string) {
	parsed, err := policy.Parse([]byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	s.policy.Store(parsed)
}

func (s *stage) accept() {
	for {
		c, err := s.entry.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			s.proxy.Serve(&Flow{Sandbox: "box", Client: c, Reader: c, Destination: s.serves(), Name: *s.sni.Load(),
				Vault: s.held.Load, Begin: s.begin})
		}()
	}
}

func (s *stage) begin(q Query, cancel func()) (policy.Decision, func()) {
	select {
	case s.cancels <- cancel:
	default:
	}
	return s.policy.Load().Decide(&policy.World{}, policy.Query{Name: q.Name, Address: s.serves().Addr(), Port: s.serves().Port(),
		Protocol: policy.TCP, Request: &policy.Request{Method: q.Method, Path: q.Path}}), func() {}
}

// bind is a vault with bindings written as JSON; PORT stands for the server's.
func (s *stage) bind(bindings string) {
	s.t.Helper()
	s.revised++
	values, err := json.Marshal(map[string]string{"key": secret, "other": "other-Value-98765", "pair": "dXNlcjpwYXNzd29yZC0xMjM0NQ=="}) // and "lost", which cannot be read
	if err != nil {
		s.t.Fatal(err)
	}
	ca, _ := json.Marshal(map[string]string{"certificate": s.inside.text, "key": s.inside.keyText(s.t)})
	roots, _ := json.Marshal(s.outside.text)
	text := `{"revision":1,"ca":` + string(ca) + `,"credentials":` + string(values) + `,"unavailable":["lost"],"bindings":[` +
		strings.ReplaceAll(bindings, "PORT", s.portText()) + `],"upstreamRoots":` + string(roots) + `}`
	held, err := vault.Parse([]byte(text), s.held.Load())
	if err != nil {
		s.t.Fatal(err)
	}
	s.held.Store(held)
}

func (s *stage) portText() string {
	_, port, _ := net.SplitHostPort(s.serves().String())
	return port
}

// binding is one in JSON, with the usual match unless more is said.
func binding(name, match, auth string) string {
	if match == "" {
		match = `"hosts":["` + host + `"]`
	}
	for member, usual := range map[string]string{"schemes": `["https"]`, "ports": `[PORT]`,
		"methods": `["GET","POST","PUT","PATCH","DELETE"]`, "paths": `["/*"]`} {
		if !strings.Contains(match, `"`+member+`"`) {
			match += `,"` + member + `":` + usual
		}
	}
	return `{"name":"` + name + `","match":{` + match + `},"auth":{` + auth + `}}`
}

const bearer = `"type":"bearer","credential":"key"`

// client speaks one version of HTTP through the proxy.
func (s *stage) client(version string) *http.Client {
	made := &http.Transport{DisableCompression: true, Protocols: &http.Protocols{}, ExpectContinueTimeout: 10 * time.Second,
		TLSClientConfig: &tls.Config{RootCAs: s.inside.pool(), ServerName: *s.sni.Load()},
		DialContext: func(_ context.Context, _, _ string) (net.Conn, error) {
			return net.Dial("tcp", s.entry.Addr().String())
		}}
	made.Protocols.SetHTTP1(version == http1)
	made.Protocols.SetHTTP2(version == http2)
	s.t.Cleanup(made.CloseIdleConnections)
	return &http.Client{Transport: made, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// raw sends bytes under TLS and reads one answer.
func (s *stage) raw(text string) (*http.Response, string) {
	s.t.Helper()
	c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: *s.sni.Load()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Fatalf("%q: %v", text, err)
	}
	body, _ := io.ReadAll(got.Body)
	return got, string(body)
}

// logged is the whole audit log.
func (s *stage) logged() string {
	content, err := os.ReadFile(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(content)
}

// echo answers with the request's head, and remembers the request.
func (s *stage) note(r *http.Request) []byte {
	body, _ := io.ReadAll(r.Body)
	var told bytes.Buffer
	_ = r.Header.Write(&told)
	kept := r.Clone(r.Context())
	kept.Body = io.NopCloser(bytes.NewReader(body))
	kept.Trailer = r.Trailer.Clone()
	s.seen <- kept
	return told.Bytes()
}
