// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/strict"
)

// bench is the proxy behind a real router, and an application on a port of its own.
type bench struct {
	t     *testing.T
	app   *httptest.Server
	port  int
	front string // host:port of the proxy
	base  string // front and path of the application
	proxy *Service
}

func newBench(t *testing.T, app http.HandlerFunc) *bench {
	t.Helper()
	b := &bench{t: t, app: httptest.NewServer(app)}
	t.Cleanup(b.app.Close)
	b.port = portOf(b.app.Listener.Addr())
	b.front, b.proxy = front(t)
	b.base = fmt.Sprintf("http://%s/proxy/%d", b.front, b.port)
	return b
}

const token = "the-token"

func front(t *testing.T) (string, *Service) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	router := api.NewRouter(token)
	router.Open("GET /ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	router.Handle("GET /inner", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inner") })
	proxy := New(portOf(listener.Addr()))
	proxy.Routes(router)
	server := &http.Server{Handler: router}
	strict.Protect(server)
	go func() { _ = server.Serve(strict.Listener(listener)) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String(), proxy
}

func portOf(address net.Addr) int {
	_, digits, _ := net.SplitHostPort(address.String())
	port, _ := strconv.Atoi(digits)
	return port
}

// client neither decodes bodies nor follows redirects.
var client = &http.Client{
	Transport:     &http.Transport{DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (b *bench) do(method, path string, body io.Reader, header http.Header) (*http.Response, string) {
	b.t.Helper()
	request, err := http.NewRequest(method, b.base+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set(api.TokenHeader, token)
	response, err := client.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response, string(text)
}

// raw opens a connection to the proxy and sends a head with the token.
func (b *bench) raw(requestLine string, headers ...string) (net.Conn, *bufio.Reader) {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.front)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	lines := append([]string{requestLine, "Host: caller.example:1234", api.TokenHeader + ": " + token}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		b.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func same[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// openDescriptors does not count the pipes that the runtime keeps for splicing: it frees them with its garbage.
func openDescriptors(t *testing.T) int {
	t.Helper()
	runtime.GC()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// waitFor polls for a condition for some seconds.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatal("waited in vain: " + what)
}
