// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package strict

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve starts a strict server that echoes bodies and sends a file for /file.
func serve(t *testing.T, network, address string) net.Addr {
	t.Helper()
	inner, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/file" {
			http.ServeFile(w, r, big)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %q secret=%q", r.Method, body, r.Header.Get("X-Secret"))
	})}
	Protect(server)
	go func() { _ = server.Serve(Listener(inner)) }()
	t.Cleanup(func() { _ = server.Close() })
	return inner.Addr()
}

// talk sends raw bytes over one connection and reads as many answers as there are texts.
func talk(t *testing.T, address net.Addr, texts ...string) (statuses []int, bodies []string) {
	t.Helper()
	conn, err := net.Dial(address.Network(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	for _, text := range texts {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		statuses, bodies = append(statuses, response.StatusCode), append(bodies, string(body))
	}
	return statuses, bodies
}

const (
	good     = "GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n"
	body     = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\na\nb\n\nTra"
	chunked  = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n"
	bareLF   = "GET / HTTP/1.1\r\nHost: x\r\nA: b\nX-Secret: 1\r\n\r\n"
	allBare  = "GET / HTTP/1.1\nHost: x\n\n"
	twoSizes = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
)

func TestB037MalformedRequestsAreRefused(t *testing.T) {
	for _, address := range []net.Addr{serve(t, "tcp", "127.0.0.1:0"), serve(t, "unix", filepath.Join(t.TempDir(), "s"))} {
		for _, text := range []string{bareLF, allBare, twoSizes, strings.Replace(bareLF, "A: b", "A: "+strings.Repeat("b", 70000), 1)} {
			statuses, bodies := talk(t, address, text)
			if statuses[0] != 400 || strings.Contains(bodies[0], "secret") {
				t.Errorf("%.60q: %d %s", text, statuses[0], bodies[0])
			}
			statuses, _ = talk(t, address, good, body, chunked, good, text)
			if fmt.Sprint(statuses) != "[200 200 200 200 400]" {
				t.Errorf("%.60q after good ones: %v", text, statuses)
			}
		}
	}
}

func TestPipelinedRequestsAreNotMistaken(t *testing.T) {
	address := serve(t, "tcp", "127.0.0.1:0")
	first := body + body[:len(body)-8]
	for range 50 {
		statuses, bodies := talk(t, address, first, "a\nb\n\nTra"+good, "", good)
		if fmt.Sprint(statuses) != "[200 200 200 200]" || bodies[1] != `POST "a\nb\n\nTra" secret=""` {
			t.Fatal(statuses, bodies)
		}
	}
}

func TestFilesAndLargeHeadsStillPass(t *testing.T) {
	address := serve(t, "tcp", "127.0.0.1:0")
	large := "GET / HTTP/1.1\r\nHost: x\r\nCookie: " + strings.Repeat("c", 60<<10) + "\r\n\r\n"
	statuses, bodies := talk(t, address, "GET /file HTTP/1.1\r\nHost: x\r\n\r\n", large, good)
	if fmt.Sprint(statuses) != "[200 200 200]" || len(bodies[0]) != 1<<20 {
		t.Fatal(statuses, len(bodies[0]))
	}
}

func FuzzHead(f *testing.F) {
	for _, seed := range []string{good, bareLF, twoSizes, "\n\n", "\r\n\r\n", "x:\n"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		var whole, pieces head
		whole.feed(data)
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			pieces.feed(rest[:n])
			rest = rest[n:]
		}
		if whole.bareLF != pieces.bareLF || whole.sawLength != pieces.sawLength || whole.finished.Load() != pieces.finished.Load() {
			t.Fatalf("%q depends on how it is cut", data)
		}
	})
}
