// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// upgradeApp switches to a protocol that first greets and then returns every byte changed.
func upgradeApp(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/refuse" {
		http.Error(w, "no upgrade here", http.StatusForbidden)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\nX-Origin: %s\r\n\r\nhello:",
		r.Header.Get("Upgrade"), r.Header.Get("Origin"))
	buffer := make([]byte, 64<<10)
	for {
		n, err := buffered.Read(buffer)
		if err != nil {
			_, _ = io.WriteString(conn, ":bye")
			return
		}
		for i := range buffer[:n] {
			buffer[i] ^= 0xff
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestUpgradedConnectionsAreRawTunnels(t *testing.T) {
	b := newBench(t, upgradeApp)
	conn, reader := b.raw(fmt.Sprintf("GET /proxy/%d/ws?x=1 HTTP/1.1", b.port),
		"Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: k", "Origin: http://caller.example")
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	same(t, fmt.Sprint(response.StatusCode, response.Header), "101 map[Connection:[Upgrade] Sec-Websocket-Accept:[a] Upgrade:[websocket] X-Origin:[http://caller.example]]")
	const size = 8 << 20
	go func() {
		_, _ = io.CopyN(conn, zeros{}, size)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	all, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(strings.TrimPrefix(string(all), "hello:"), ":bye")
	same(t, len(all)-len(text), len("hello::bye"))
	same(t, len(text), size)
	same(t, strings.Trim(text, "\xff"), "")
}

func TestRefusedUpgradeIsAnOrdinaryAnswer(t *testing.T) {
	b := newBench(t, upgradeApp)
	response, body := b.do("GET", "/refuse", nil, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}})
	same(t, fmt.Sprint(response.StatusCode, body), "403no upgrade here\n")
}

func TestTunnelsEndWithEitherSide(t *testing.T) {
	b := newBench(t, upgradeApp)
	before := openDescriptors(t)
	for range 20 {
		conn, reader := b.raw(fmt.Sprintf("GET /proxy/%d/ HTTP/1.1", b.port), "Connection: Upgrade", "Upgrade: x")
		if _, err := http.ReadResponse(reader, nil); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	waitFor(t, "descriptors of closed tunnels", func() bool { return openDescriptors(t) <= before+2 })
}

// TestB031AbortedDownloads counts what 1000 callers who leave early hold on to.
func TestB031AbortedDownloads(t *testing.T) {
	var active atomic.Int64
	release := make(chan struct{})
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		active.Add(1)
		defer active.Add(-1)
		switch r.URL.Path {
		case "/silent":
			select {
			case <-r.Context().Done():
			case <-release:
			}
		case "/endless":
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}
	})
	defer close(release)
	before := openDescriptors(t)
	for _, path := range []string{"/silent", "/endless"} {
		for range 500 {
			conn, reader := b.raw(fmt.Sprintf("GET /proxy/%d%s HTTP/1.1", b.port, path))
			if path == "/endless" {
				if _, err := reader.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
	}
	start := time.Now()
	response, _ := b.do("GET", "/", nil, nil)
	if took := time.Since(start); response.StatusCode != 200 || took > 15*time.Second {
		t.Fatal(response.StatusCode, took)
	}
	waitFor(t, "requests of callers who left", func() bool { return active.Load() == 0 })
	waitFor(t, "descriptors", func() bool { return openDescriptors(t) <= before+4 })
}

func TestIdleConnectionsAreBoundedAndShort(t *testing.T) {
	gate := make(chan struct{})
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) { <-gate })
	before := openDescriptors(t)
	done := make(chan struct{})
	for range 30 {
		go func() {
			b.do("GET", "/", nil, nil)
			done <- struct{}{}
		}()
	}
	time.Sleep(100 * time.Millisecond)
	close(gate)
	for range 30 {
		<-done
	}
	client.CloseIdleConnections()
	waitFor(t, "idle connections", func() bool { return openDescriptors(t) <= before+2*idlePerPort+4 })
	waitFor(t, "the end of idle connections", func() bool { return openDescriptors(t) <= before+2 })
}
