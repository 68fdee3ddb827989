// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rawApp answers each connection with what reply returns for the request's head.
func rawApp(t *testing.T, network, address string, reply func(head string) string) int {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("CANNOT RUN HERE: listen on %s: %v", address, err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var head strings.Builder
				for reader := bufio.NewReader(conn); !strings.HasSuffix(head.String(), "\r\n\r\n"); {
					b, err := reader.ReadByte()
					if err != nil {
						return
					}
					head.WriteByte(b)
				}
				_, _ = io.WriteString(conn, reply(head.String()))
			}()
		}
	}()
	return portOf(listener.Addr())
}

func echoHead(head string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(head), head)
}

// through sends a raw request line to an application at a port and returns the head that it saw.
func through(t *testing.T, port int, method, target string, headers ...string) string {
	t.Helper()
	b := &bench{t: t}
	b.front, _ = front(t)
	_, reader := b.raw(fmt.Sprintf("%s /proxy/%d%s HTTP/1.1", method, port, target), headers...)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	same(t, response.StatusCode, 200)
	return string(body)
}

func TestPathAndQueryGoThroughByteForByte(t *testing.T) {
	port := rawApp(t, "tcp", "127.0.0.1:0", echoHead)
	for _, target := range []string{
		"/", "/a%2Fb%2fc", "/a/../b/./c", "//double//slash/", "/a;b=c,d", "/%E4%B8%AD", "/\xc3\xbc", "/x?q=%zz&&a=1&a=2&b",
		"/x?", "/x?a?b#c", `/|^"<>`, "/a+b?c+d", "/proxy/1/x", "/?q=%2520", "/*", "/:80",
	} {
		line, _, _ := strings.Cut(through(t, port, "GET", target), "\r\n")
		same(t, line, "GET "+target+" HTTP/1.1")
	}
	for given, want := range map[string]string{"": "/", "?a=b": "/?a=b"} {
		line, _, _ := strings.Cut(through(t, port, "OPTIONS", given), "\r\n")
		same(t, line, "OPTIONS "+want+" HTTP/1.1")
	}
}

func TestB035HostAndForwardedHeaders(t *testing.T) {
	port := rawApp(t, "tcp", "127.0.0.1:0", echoHead)
	head := through(t, port, "GET", "/", "Cookie: a=b", "Authorization: Basic x", "X-Twice: 1", "X-Twice: 2", "Connection: X-Hop", "X-Hop: gone",
		"OPEN-SANDBOX-API-KEY: secret", "OpenSandbox-Secure-Access: secret", "Keep-Alive: timeout=5", "Te: trailers, deflate", "Accept-Encoding: br")
	for _, line := range []string{
		fmt.Sprintf("Host: localhost:%d", port), "Cookie: a=b", "Authorization: Basic x", "X-Twice: 1", "X-Twice: 2", "Accept-Encoding: br",
		"X-Forwarded-Host: caller.example:1234", "X-Forwarded-Proto: http", "X-Forwarded-For: 127.0.0.1", "Te: trailers",
	} {
		if strings.Count(head, "\r\n"+line+"\r\n") != 1 {
			t.Errorf("%q is not there once:\n%s", line, head)
		}
	}
	for _, word := range []string{token, "secret", "X-Hop", "Keep-Alive", "User-Agent", "deflate", "Connection"} {
		if strings.Contains(head, word) {
			t.Errorf("%q went through:\n%s", word, head)
		}
	}
	head = through(t, port, "GET", "/", "X-Forwarded-Host: real.example", "X-Forwarded-Proto: https", "X-Forwarded-For: 1.2.3.4")
	for _, line := range []string{"X-Forwarded-Host: real.example", "X-Forwarded-Proto: https", "X-Forwarded-For: 1.2.3.4"} {
		if strings.Count(head, "\r\n"+line+"\r\n") != 1 {
			t.Errorf("%q is not there once:\n%s", line, head)
		}
	}
}

func TestB029EncodedBodiesStayAsTheyAre(t *testing.T) {
	plain := strings.Repeat("hello ", 1000)
	var zipped, deflated bytes.Buffer
	gz := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(gz, plain)
	_ = gz.Close()
	fl, _ := flate.NewWriter(&deflated, 6)
	_, _ = io.WriteString(fl, plain)
	_ = fl.Close()
	bodies := map[string][]byte{"gzip": zipped.Bytes(), "deflate": deflated.Bytes(), "br": []byte("\x0b\x02\x80not really brotli\x03")}
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		encoding := r.URL.Query().Get("e")
		w.Header().Set("Content-Encoding", encoding)
		w.Header()["Content-Type"] = nil
		if r.URL.Path == "/fixed" {
			w.Header().Set("Content-Length", strconv.Itoa(len(bodies[encoding])))
		}
		_, _ = w.Write(bodies[encoding][:5])
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(bodies[encoding][5:])
	})
	for encoding, want := range bodies {
		for _, path := range []string{"/fixed", "/chunked"} {
			response, body := b.do("GET", path+"?e="+encoding, nil, http.Header{"Accept-Encoding": {encoding}})
			same(t, body, string(want))
			same(t, response.Header.Get("Content-Encoding"), encoding)
			if _, guessed := response.Header["Content-Type"]; guessed {
				t.Error("a content type was invented")
			}
			if path == "/fixed" {
				same(t, response.ContentLength, int64(len(want)))
			}
		}
		response, body := b.do("HEAD", "/fixed?e="+encoding, nil, nil)
		same(t, body, "")
		same(t, response.ContentLength, int64(len(want)))
	}
}

func TestB029AnswersWithoutBody(t *testing.T) {
	content := strings.NewReader("0123456789")
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		default:
			w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
			http.ServeContent(w, r, "f.txt", time.Unix(1e9, 0), content)
		}
	})
	response, body := b.do("GET", "/204", nil, nil)
	same(t, fmt.Sprint(response.StatusCode, body, response.TransferEncoding), "204[]")
	response, _ = b.do("GET", "/304", nil, nil)
	same(t, fmt.Sprint(response.StatusCode, response.Header.Get("Etag")), `304"x"`)
	response, body = b.do("GET", "/f", nil, http.Header{"Range": {"bytes=2-4"}})
	same(t, fmt.Sprint(response.StatusCode, body, response.Header.Get("Content-Range")), "206234bytes 2-4/10")
	same(t, fmt.Sprint(response.Header["Set-Cookie"]), "[a=1 b=2]")
	same(t, len(response.Header["Date"]), 1)
}

func TestBodiesAreStreamedBothWays(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		buffer := make([]byte, 100)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(bytes.ToUpper(buffer[:n]))
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	})
	reader, writer := io.Pipe()
	request, err := http.NewRequest("POST", b.base+"/echo", reader)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Execd-Access-Token", token)
	go func() { _, _ = io.WriteString(writer, "one") }()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	for _, word := range []string{"one", "two", "three"} {
		if word != "one" {
			_, _ = io.WriteString(writer, word)
		}
		n, err := response.Body.Read(buffer)
		if err != nil || string(buffer[:n]) != strings.ToUpper(word) {
			t.Fatalf("%q %v", buffer[:n], err)
		}
	}
	writer.Close()
	response.Body.Close()
	for range 20 {
		response, _ = b.do("POST", "/early", io.LimitReader(zeros{}, 16<<20), nil)
		same(t, response.StatusCode, 413)
	}
	response, body := b.do("DELETE", "/echo", strings.NewReader("body"), nil)
	same(t, fmt.Sprint(response.StatusCode, body), "200BODY")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestExpectationsReachTheApplication(t *testing.T) {
	port := rawApp(t, "tcp", "127.0.0.1:0", func(head string) string {
		if !strings.Contains(head, "Expect: 100-continue") {
			return "HTTP/1.1 500 No\r\n\r\n"
		}
		return "HTTP/1.1 413 Too Large\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbig\r\n0\r\n\r\n"
	})
	b := &bench{t: t}
	b.front, _ = front(t)
	start := time.Now()
	_, reader := b.raw(fmt.Sprintf("PUT /proxy/%d/ HTTP/1.1", port), "Expect: 100-continue", "Content-Length: 1000000")
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 413 {
		t.Fatal(response, err)
	}
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "big" || time.Since(start) > 15*time.Second {
		t.Fatalf("%q %v after %v", body, err, time.Since(start))
	}
}

// TestTheRestOfABodyIsNoRequest: what an application leaves unread must not be run as a request of its own.
func TestTheRestOfABodyIsNoRequest(t *testing.T) {
	port := rawApp(t, "tcp", "127.0.0.1:0", func(string) string { return "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n" })
	b := &bench{t: t}
	b.front, _ = front(t)
	smuggled := "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 10 {
		conn, reader := b.raw(fmt.Sprintf("POST /proxy/%d/ HTTP/1.1", port), "Transfer-Encoding: chunked")
		if _, err := io.WriteString(conn, "5\r\nfirst\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != 413 || !response.Close {
			t.Fatal(response, err)
		}
		_, _ = io.WriteString(conn, smuggled+smuggled) // the connection may be closed already
		if response, err := http.ReadResponse(reader, nil); err == nil {
			t.Fatal("answered: ", response)
		}
		conn.Close()
	}
}

func TestEventStreamsAreDeliveredAtOnce(t *testing.T) {
	next := make(chan struct{})
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for range next {
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	})
	_, reader := b.raw(fmt.Sprintf("GET /proxy/%d/ HTTP/1.1", b.port))
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	for range 5 {
		start := time.Now()
		next <- struct{}{}
		if _, err := response.Body.Read(buffer); err != nil || time.Since(start) > 5*time.Second {
			t.Fatal(err, time.Since(start))
		}
	}
	close(next)
}

func TestTrailers(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Sum", r.Trailer.Get("X-Asked"))
	})
	request, err := http.NewRequest("POST", b.base+"/", io.MultiReader(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Execd-Access-Token", token)
	request.Trailer = http.Header{"X-Asked": {"42"}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	same(t, fmt.Sprint(response.Trailer), "map[X-Sum:[42]]")
}

func TestRedirectsToOurHostBecomeRelative(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", strings.ReplaceAll(r.URL.Query().Get("to"), "HOST", r.Host))
		w.WriteHeader(302)
	})
	for to, want := range map[string]string{
		"http://HOST/x?y": "/x?y", "http://HOST": "/", "/rooted": "/rooted", "http://other/x": "http://other/x", "http://HOST//evil": "http://HOST//evil",
	} {
		response, _ := b.do("GET", "/?to="+to, nil, nil)
		same(t, response.Header.Get("Location"), strings.ReplaceAll(want, "HOST", fmt.Sprintf("localhost:%d", b.port)))
	}
}

func TestServersOnIPv6Loopback(t *testing.T) {
	port := rawApp(t, "tcp6", "[::1]:0", echoHead)
	if head := through(t, port, "GET", "/six"); !strings.HasPrefix(head, "GET /six ") {
		t.Fatal(head)
	}
}

func TestTheDaemonBehindItsOwnProxy(t *testing.T) {
	b := newBench(t, func(http.ResponseWriter, *http.Request) {})
	_, digits, _ := net.SplitHostPort(b.front)
	b.base = fmt.Sprintf("http://%s/proxy/%s/proxy/%s", b.front, digits, digits)
	response, body := b.do("GET", "/inner", nil, nil)
	same(t, fmt.Sprint(response.StatusCode, body), "200inner")
}

func TestB037LargeAndMalformedHeaders(t *testing.T) {
	port := rawApp(t, "tcp", "127.0.0.1:0", echoHead)
	cookie := "Cookie: " + strings.Repeat("c", 60<<10)
	if head := through(t, port, "GET", "/", cookie); !strings.Contains(head, cookie) {
		t.Fatal("the cookie is not whole")
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("X-Header-%d: %d", i, i))
	}
	if head := through(t, port, "GET", "/", many...); !strings.Contains(head, "X-Header-199: 199") {
		t.Fatal("headers are missing")
	}
	for _, bad := range []string{"A: b\nX-Secret: 1", "Content-Length: 3\r\nTransfer-Encoding: chunked", "A : b", "A: b\x00c", "Content-Length: 1\r\nContent-Length: 2"} {
		b := &bench{t: t}
		b.front, _ = front(t)
		_, reader := b.raw(fmt.Sprintf("POST /proxy/%d/ HTTP/1.1", port), bad)
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != 400 {
			t.Errorf("%q: %v %v", bad, response, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"/proxy/80", "/proxy/80/", "/proxy/00080/x", "/proxy//", "/proxy/%38%30/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		to, ok := targetOf(raw)
		if ok && (to.port < 1 || to.port > 65535 || !strings.HasPrefix(to.path, "/") || !strings.HasSuffix(to.host, strconv.Itoa(to.port))) {
			t.Fatalf("%q: %+v", raw, to)
		}
	})
}
