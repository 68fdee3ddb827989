// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func TestFiftyStreamsOfTwoAuthorities(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", `"hosts":["`+host+`","other.bound.test"]`, bearer))
	c := s.client(http2)
	var all sync.WaitGroup
	statuses := make(chan string, 50)
	for i := range 50 {
		all.Go(func() {
			request, _ := http.NewRequest("GET", fmt.Sprintf("https://%s:%s/%d", host, s.portText(), i), nil)
			if i%2 == 1 {
				request.Host = "other.bound.test"
			}
			got, err := c.Do(request)
			if err != nil {
				statuses <- err.Error()
				return
			}
			_, _ = io.Copy(io.Discard, got.Body)
			got.Body.Close()
			statuses <- fmt.Sprint(request.Host != "other.bound.test", got.StatusCode)
		})
	}
	all.Wait()
	counts := map[string]int{}
	for range 50 {
		counts[<-statuses]++
	}
	if counts["true 200"] != 25 || counts["false 421"] != 25 {
		t.Error(counts)
	}
	for range 25 {
		if sent := <-s.seen; sent.Host != host+":"+s.portText() && sent.Host != host || sent.Header.Get("Authorization") != "Bearer "+secret {
			t.Error(sent.Host, sent.Header)
		}
	}
	if log := s.logged(); strings.Count(log, `"status":200`) != 25 || !strings.Contains(log, "names \\\"other.bound.test\\\"") {
		t.Error(log)
	}
}

func TestBothSidesSpeakTheSameVersion(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", "", bearer))
	for _, each := range []struct {
		offered []string
		server  []string
		want    string
	}{
		{[]string{"h2", "http/1.1"}, []string{"h2", "http/1.1"}, "h2"}, {[]string{"http/1.1"}, []string{"h2", "http/1.1"}, "http/1.1"},
		{[]string{"h2"}, []string{"h2", "http/1.1"}, "h2"}, {nil, []string{"h2", "http/1.1"}, ""},
	} {
		c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host, NextProtos: each.offered})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != each.want {
			t.Errorf("%v: %q", each.offered, got)
		}
		c.Close()
	}
}

func TestAServerWithoutHTTP2(t *testing.T) {
	s := recorder(t)
	s.server.TLS.NextProtos = []string{"http/1.1"} // read at each handshake
	s.bind(binding("b", "", bearer))
	c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Error(got)
	}
}

func TestCertificatesOfLeaves(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", "", bearer))
	c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	leaf := c.ConnectionState().PeerCertificates[0]
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != host || leaf.IsCA || time.Until(leaf.NotBefore) > -30*time.Minute || time.Until(leaf.NotAfter) > 25*time.Hour {
		t.Errorf("%v %v %v", leaf.DNSNames, leaf.NotBefore, leaf.NotAfter)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: s.inside.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Error(err)
	}
}

func TestServersThatCannotShowACertificateGetNothing(t *testing.T) {
	s := recorder(t)
	stranger := newAuthority(t, "stranger")
	for _, each := range []tls.Certificate{stranger.sign(t, host), s.outside.sign(t, "evil.test")} {
		s.server.TLS.Certificates[0] = each
		s.bind(binding("b", "", bearer))
		for _, version := range []string{http1, http2} {
			got, body := s.get(s.client(version), "/")
			if got.StatusCode != 502 || !strings.Contains(body, "certificate") {
				t.Errorf("%s: %s %s", version, got.Status, body)
			}
		}
	}
	if len(s.seen) != 0 {
		t.Error("a request was sent")
	}
}

func TestWebSockets(t *testing.T) {
	headers := make(chan string, 2)
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Get("Authorization")
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		kind, message, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), kind, message)
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	}))
	s.bind(binding("b", "", bearer))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, got, err := websocket.Dial(ctx, "wss://"+host+":"+s.portText()+"/ws", &websocket.DialOptions{HTTPClient: s.client(http1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, message, err := c.Read(ctx); err != nil || string(message) != "hello" || got.Header.Get("X-Echo") != "Bearer [REDACTED]" {
		t.Errorf("%q %v %v", message, err, got.Header)
	}
	_ = c.CloseNow()
	if head := <-headers; head != "Bearer "+secret {
		t.Error(head)
	}
	s.bind(redacting(binding("b", "", bearer)))
	if _, got, err := websocket.Dial(ctx, "wss://"+host+":"+s.portText()+"/ws", &websocket.DialOptions{HTTPClient: s.client(http1)}); err == nil || got.StatusCode != 502 {
		t.Error("a tunnel that cannot be looked into was opened", err)
	}
}

func TestTrailersBothWays(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "message")
		w.Header().Set("Grpc-Status", "0 "+r.Trailer.Get("X-Tail"))
	}))
	s.bind(binding("b", "", bearer))
	for _, version := range []string{http1, http2} {
		request, _ := http.NewRequest("POST", "https://"+host+":"+s.portText()+"/", io.NopCloser(strings.NewReader("x")))
		request.ContentLength = -1
		request.Header.Set("Te", "trailers")
		request.Trailer = http.Header{"X-Tail": {"end"}}
		got, err := s.client(version).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		got.Body.Close()
		if got.Trailer.Get("Grpc-Status") != "0 end" {
			t.Errorf("%s: %v", version, got.Trailer)
		}
	}
}

func TestChangesHoldForTheNextRequestOfOpenConnections(t *testing.T) {
	s := recorder(t)
	for _, version := range []string{http1, http2} {
		s.bind(binding("b", "", bearer))
		c := s.client(version)
		s.get(c, "/")
		if sent := <-s.seen; sent.Header.Get("Authorization") != "Bearer "+secret {
			t.Error(sent.Header)
		}
		s.bind(binding("b", "", `"type":"apiKey","name":"X-Key","credential":"other"`))
		s.get(c, "/")
		if sent := <-s.seen; sent.Header.Get("Authorization") != "" || sent.Header.Get("X-Key") != "other-Value-98765" {
			t.Error(sent.Header)
		}
		s.bind(binding("b", `"hosts":["other.bound.test"]`, bearer))
		if got, body := s.get(c, "/"); got.StatusCode != 421 || !strings.Contains(body, "not bound") {
			t.Error(got.Status, body)
		}
		s.bind(binding("b", "", bearer))
		s.get(c, "/") // connected again
		<-s.seen
		s.held.Store(nil)
		if got, _ := s.get(c, "/"); got.StatusCode != 421 {
			t.Error(got.Status)
		}
	}
	if len(s.seen) != 0 {
		t.Error("a request was sent without its credential")
	}
}

func TestAPolicyCutsWhatIsUnderWay(t *testing.T) {
	started := make(chan bool)
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		started <- true
		<-r.Context().Done()
	}))
	s.bind(binding("b", "", bearer))
	for _, version := range []string{http1, http2} {
		got, err := s.client(version).Get("https://" + host + ":" + s.portText() + "/")
		if err != nil {
			t.Fatal(err)
		}
		<-started
		(<-s.cancels)()
		if _, err := io.ReadAll(got.Body); err == nil {
			t.Error(version, "it ended as if it were whole")
		}
		got.Body.Close()
	}
	s.setPolicy(`{"defaultAction":"deny","egress":[{"action":"allow","target":"` + host + `","methods":["GET"],"paths":["/open/*"]}]}`)
	if got, body := s.get(s.client(http1), "/closed"); got.StatusCode != 403 || !strings.Contains(body, "denied by default deny") {
		t.Error(got.Status, body)
	}
}

func TestAmbiguityAndPrecedence(t *testing.T) {
	s := recorder(t)
	name := "a.wild.test"
	s.setSNI(name)
	s.bind(binding("exact", `"hosts":["a.wild.test"],"paths":["/one"]`, bearer) + "," +
		binding("wide", `"hosts":["*.wild.test"]`, `"type":"apiKey","name":"X-Key","credential":"other"`))
	get := func(path string) (int, string) {
		got, err := s.client(http1).Get("https://" + name + ":" + s.portText() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		body, _ := io.ReadAll(got.Body)
		return got.StatusCode, string(body)
	}
	get("/one")
	if sent := <-s.seen; sent.Header.Get("Authorization") == "" || sent.Header.Get("X-Key") != "" {
		t.Error(sent.Header)
	}
	get("/two")
	if sent := <-s.seen; sent.Header.Get("Authorization") != "" || sent.Header.Get("X-Key") == "" {
		t.Error(sent.Header)
	}
	s.bind(binding("first", `"hosts":["a.wild.test"]`, bearer) + "," + binding("second", `"hosts":["a.wild.test"],"paths":["/two"]`, bearer))
	if status, body := get("/two"); status != 403 || !strings.Contains(body, `"first" and "second"`) {
		t.Error(status, body)
	}
}

func TestPlainHTTP(t *testing.T) {
	s := recorder(t)
	plain := &http.Server{Handler: s.server.Config.Handler}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = plain.Serve(listener) }()
	defer plain.Close()
	s.serve(listener)
	s.setSNI("")
	s.bind(binding("b", `"hosts":["`+host+`"],"schemes":["http"],"paths":["/v1/*"]`, bearer))
	c, err := net.Dial("tcp", s.entry.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader := bufio.NewReader(c)
	ask := func(text string) int {
		_, _ = io.WriteString(c, text+"\r\n\r\n")
		got, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		return got.StatusCode
	}
	ask("GET /v1/x HTTP/1.1\r\nHost: " + host)
	ask("GET /v2/x HTTP/1.1\r\nHost: " + host)
	ask("GET /v1/x HTTP/1.1\r\nHost: unbound.test")
	for i, want := range []string{"Bearer " + secret, "", ""} {
		if sent := <-s.seen; sent.Header.Get("Authorization") != want {
			t.Error(i, sent.Header)
		}
	}
	if status := ask("GET /v1/../x HTTP/1.1\r\nHost: " + host); status != 403 {
		t.Error(status)
	}
}

func TestRedirectsCarryNothingOn(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://evil.test/?back="+r.Header.Get("Authorization"), http.StatusTemporaryRedirect)
	}))
	s.bind(binding("b", "", bearer))
	got, body := s.get(s.client(http1), "/")
	if got.StatusCode != 307 || got.Header.Get("Location") != "https://evil.test/?back=Bearer [REDACTED]" && strings.Contains(got.Header.Get("Location"), secret) {
		t.Error(got.Status, got.Header, body)
	}
	if strings.Contains(fmt.Sprint(got.Header), secret) {
		t.Error(got.Header)
	}
}

func TestAServerThatSpeaksNoHTTPIsNotQuoted(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 4096)
				n, _ := c.Read(buffer)
				_, _ = c.Write(append([]byte("HTTP/1.1 2xx "), buffer[:n]...))
			}()
		}
	}()
	s := recorder(t)
	s.serve(listener)
	s.setSNI("")
	s.bind(binding("b", `"hosts":["`+host+`"],"schemes":["http"]`, bearer))
	c, err := net.Dial("tcp", s.entry.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 502") || strings.Contains(string(answer), secret) || strings.Contains(s.logged(), secret) {
		t.Errorf("%s %s", answer, s.logged())
	}
}

func TestOrdinaryConnectionsEndWithoutARefusal(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", "", bearer))
	for _, version := range []string{http1, http2} {
		c := s.client(version)
		for range 3 {
			s.get(c, "/")
		}
		c.CloseIdleConnections()
	}
	time.Sleep(200 * time.Millisecond)
	if log := s.logged(); strings.Contains(log, `"deny"`) {
		t.Error(log)
	}
}
