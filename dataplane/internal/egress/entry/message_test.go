// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bufio"
	"strings"
	"testing"
)

func requestOf(text string) (*request, error) {
	m, err := readMessage(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		return nil, err
	}
	return parseRequest(m)
}

func TestRequestsAreUnderstood(t *testing.T) {
	for text, want := range map[string]string{
		"GET /a HTTP/1.1\r\nHost: A.Test:80\r\n\r\n":                             "a.test",
		"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n":                   "a.test",
		"GET /a HTTP/1.0\r\n\r\n":                                                "",
		"GET /a HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n\r\n":                         "",
		"GET /a HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n":                            "",
		"POST / HTTP/1.1\r\nHost: a.test.\r\nTransfer-Encoding: chunked\r\n\r\n": "a.test",
	} {
		r, err := requestOf(text)
		if err != nil || r.name != want {
			t.Errorf("%q: %+v %v", text, r, err)
		}
	}
}

func TestWhatTwoProgramsCouldReadDifferentlyIsRefused(t *testing.T) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test\r\nhost: b.test\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET http://a.test@evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/1.1\nHost: a.test\n\n",
		"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n",
		"GET / HTTP/1.1\r\n Host: a.test\r\n\r\n",
		"GET / HTTP/1.1\r\nX: a\r\n b\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test/evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test:@evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test:80a\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding:\r\n\r\n",
		"POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.te\x00st\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rHost: b\r\n\r\n",
	} {
		if r, err := requestOf(text); err == nil {
			t.Errorf("%q was taken for %q", text, r.name)
		}
	}
}

func TestAnOfferOfHTTP2IsTakenBack(t *testing.T) {
	r, err := requestOf("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX: y\r\n\r\n")
	if err != nil || r.upgrade {
		t.Fatal(r, err)
	}
	if got := string(r.out); got != "GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n" {
		t.Errorf("%q", got)
	}
	r, err = requestOf("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if err != nil || !r.upgrade {
		t.Error(r, err)
	}
}

func TestPathsThatMeanSomethingElse(t *testing.T) {
	for path, want := range map[string]bool{
		"/a/b": true, "/a%20b?x=../..": true, "/%C3%A9": true, "/": true, "*": true,
		"/a/../b": false, "/a/./b": false, "/a//b": false, "/a%2fb": false, "/a%2F..": false, "/%61dmin": false,
		"/a\\b": false, "/a%5cb": false, "/%2e%2e/b": false, "/a;x/b": false, "/%252e": false,
	} {
		if got := isNormal(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestBodiesPassAsTheyAreFramed(t *testing.T) {
	for body, good := range map[string]bool{
		"3\r\nabc\r\n0\r\n\r\n": true, "3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n": true,
		"3\r\nabcd\r\n0\r\n\r\n": false, "-1\r\n": false, "3\nabc\n0\n\n": false, "0x3\r\nabc\r\n0\r\n\r\n": false,
		"ffffffffffffffffff\r\n": false, "": false,
	} {
		var out strings.Builder
		_, err := copyBody(&out, bufio.NewReader(strings.NewReader(body)), -1)
		if (err == nil) != good || good && out.String() != body {
			t.Errorf("%q: %q %v", body, out.String(), err)
		}
	}
}
