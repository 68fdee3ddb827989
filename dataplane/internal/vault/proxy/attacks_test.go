// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// fate is what has to become of an attempt.
type fate int

const (
	refused  fate = iota // an answer of our own, in the log, and nothing reached the server
	bare                 // the server got it without any credential
	replaced             // the server got the credential once, and nothing of what the client sent for it
)

// attempt is something that hostile code sends on a connection to the bound host.
type attempt struct {
	name   string
	text   string // with HOST for the bound host
	ends   fate
	status int // when refused
}

const (
	end  = "\r\n\r\n"
	mine = "Bearer mine"
)

// The binding is for GET and POST below /v1/ and for the path /exact.
var attempts = []attempt{
	{"another host", "GET /v1/a HTTP/1.1\r\nHost: evil.test" + end, refused, 403},
	{"a host below", "GET /v1/a HTTP/1.1\r\nHost: x.HOST" + end, refused, 403},
	{"a host around", "GET /v1/a HTTP/1.1\r\nHost: HOST.evil.test" + end, refused, 403},
	{"user and host", "GET /v1/a HTTP/1.1\r\nHost: HOST@evil.test" + end, refused, 0},
	{"two hosts", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nHost: evil.test" + end, refused, 400},
	{"a list of hosts", "GET /v1/a HTTP/1.1\r\nHost: HOST, evil.test" + end, refused, 0},
	{"no host", "GET /v1/a HTTP/1.0" + end, refused, 403},
	{"an address as host", "GET /v1/a HTTP/1.1\r\nHost: 127.0.0.1" + end, refused, 403},
	{"another port", "GET /v1/a HTTP/1.1\r\nHost: HOST:1" + end, refused, 403},
	{"a port that is none", "GET /v1/a HTTP/1.1\r\nHost: HOST:+443" + end, refused, 0},
	{"absolute form", "GET https://evil.test/v1/a HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"absolute form of the bound host", "GET https://HOST/v1/a HTTP/1.1\r\nHost: evil.test" + end, refused, 403},
	{"CONNECT", "CONNECT HOST:443 HTTP/1.1\r\nHost: HOST:443" + end, refused, 403},
	{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"dot segments", "GET /v1/../admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"escaped dots", "GET /v1/%2e%2e/admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"half escaped dots", "GET /v1/.%2e/admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"dots escaped twice", "GET /v1/%252e%252e/admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"dots behind an escaped slash", "GET /v1/x%2f..%2f..%2fadmin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"dots with parameters", "GET /v1/..;x=1/admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"one dot", "GET /v1/./a HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"a backslash", "GET /v1/..\\admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"an escaped backslash", "GET /v1/..%5cadmin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"escapes without end", "GET /v1/%252525252525252525252541 HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"a null byte", "GET /v1/a%00 HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"a line break in the path", "GET /v1/a%0d%0aX:%20y HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"a fragment", "GET /v1/a#/../../admin HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"an escaped slash for the border", "GET /v1%2fa HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"another case of the path", "GET /V1/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"another path", "GET /v2/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"a longer exact path", "GET /exact/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"two slashes first", "GET //v1/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"another method", "DELETE /v1/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"another case of the method", "get /v1/a HTTP/1.1\r\nHost: HOST" + end, bare, 0},
	{"a method in a header", "POST /v1/a HTTP/1.1\r\nHost: HOST\r\nX-HTTP-Method-Override: DELETE\r\nContent-Length: 0" + end, refused, 403},
	{"a path in a header", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nX-Original-URL: /admin" + end, refused, 403},
	{"a path in a header with underscores", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nX_Rewrite_Url: /admin" + end, refused, 403},
	{"a header of its own", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nAuthorization: " + mine + end, replaced, 0},
	{"its own header twice", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nauthorization: " + mine + "\r\nAUTHORIZATION: " + mine + end, replaced, 0},
	{"its own header elsewhere spelled", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\naUthOrization: " + mine + end, replaced, 0},
	{"its own header in the trailer", "POST /v1/a HTTP/1.1\r\nHost: HOST\r\nTrailer: Authorization\r\nTransfer-Encoding: chunked" + end +
		"1\r\nx\r\n0\r\nAuthorization: " + mine + end, replaced, 0},
	{"the header named by Connection", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nConnection: keep-alive, Authorization\r\nAuthorization: " + mine + end, replaced, 0},
	{"a length and chunks", "POST /v1/a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nTransfer-Encoding: chunked" + end +
		"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: evil.test" + end, replaced, 0},
	{"two lengths", "POST /v1/a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nContent-Length: 6" + end + "abcdef", refused, 400},
	{"a space before the colon", "GET /v1/a HTTP/1.1\r\nHost : HOST" + end, refused, 400},
	{"a switch to another protocol", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA" + end, replaced, 0},
	{"HTTP/2 in the middle of HTTP/1", "PRI * HTTP/2.0" + end + "SM" + end, refused, 0},
	{"a placeholder where none is replaced", "GET /v1/a?k=__KEY__ HTTP/1.1\r\nHost: HOST" + end, refused, 403},
	{"a placeholder on a path without binding", "GET /v2/a HTTP/1.1\r\nHost: HOST\r\nX: __KEY__" + end, refused, 403},
	{"a hidden placeholder", "GET /v1/a HTTP/1.1\r\nHost: HOST\r\nAuthorization: Basic " + base64.StdEncoding.EncodeToString([]byte("u:__KEY__")) + end, refused, 403},
	{"a target that is no path", "GET ?x=/v1/ HTTP/1.1\r\nHost: HOST" + end, refused, 400},
}

func bindAttempts(s *stage) {
	s.bind(binding("b", `"hosts":["`+host+`"],"methods":["GET","POST"],"paths":["/v1/*","/exact"]`, bearer) + "," +
		binding("p", `"hosts":["*.wild.test"]`, `"type":"passthrough","substitutions":[{"credential":"other","placeholder":"__KEY__","in":["header"]}]`))
}

func TestAttemptsToSteerACredential(t *testing.T) {
	if len(attempts) < 40 {
		t.Fatalf("only %d attempts", len(attempts))
	}
	s := recorder(t)
	bindAttempts(s)
	for _, each := range attempts {
		t.Run(each.name, func(t *testing.T) {
			before := len(s.logged())
			got, body := s.raw(strings.ReplaceAll(each.text, "HOST", host))
			noted := s.logged()[before:]
			s.checkFate(t, each, got, body, noted)
		})
	}
}

func (s *stage) checkFate(t *testing.T, each attempt, got *http.Response, body, noted string) {
	t.Helper()
	var sent *http.Request
	select {
	case sent = <-s.seen:
	default:
	}
	if strings.Contains(body+fmt.Sprint(got.Header)+noted, secret) {
		t.Errorf("the secret came back: %s %v %s", body, got.Header, noted)
	}
	switch each.ends {
	case refused:
		if sent != nil {
			t.Fatalf("it reached the server: %s %v", sent.RequestURI, sent.Header)
		}
		if got.StatusCode < 400 || each.status != 0 && got.StatusCode != each.status {
			t.Errorf("%s: %s", got.Status, body)
		}
		if got.StatusCode == 400 { // found out by the server beneath, which closes a little later
			noted = s.waitFor("cannot be read as a request")
		}
		if !strings.Contains(noted, `"deny"`) {
			t.Errorf("%s, and the log says %q", got.Status, noted)
		}
	case bare:
		if sent == nil || sent.Header.Get("Authorization") != "" || !strings.Contains(noted, `"allow"`) || strings.Contains(noted, `"binding"`) {
			t.Errorf("%s %+v %s", got.Status, sent, noted)
		}
	case replaced:
		if sent == nil {
			t.Fatal(got.Status, body)
		}
		all := fmt.Sprint(sent.Header, sent.Trailer)
		if strings.Join(sent.Header["Authorization"], "|") != "Bearer "+secret || strings.Contains(all, mine) || sent.Header.Get("Upgrade") != "" {
			t.Error(all)
		}
		if !strings.Contains(noted, `"binding":"b"`) {
			t.Error(noted)
		}
	}
}

// waitFor is the line of the log that says something; a denial is written once and then counted.
func (s *stage) waitFor(text string) string {
	for range 1000 {
		for line := range strings.Lines(s.logged()) {
			if strings.Contains(line, text) {
				return line
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ""
}

func TestSpellingsOfInjectedHeaders(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", "", `"type":"apiKey","name":"X-Api-Key","credential":"key"`))
	for _, spelling := range []string{"x_api_key", "X-API_KEY", "x-api-key", "X_Api-Key"} {
		s.raw("GET / HTTP/1.1\r\nHost: " + host + "\r\n" + spelling + ": mine" + end)
		if sent := fmt.Sprint((<-s.seen).Header); strings.Contains(sent, "mine") || strings.Count(sent, secret) != 1 {
			t.Error(spelling, sent)
		}
	}
}

// echoes are the ways in which a server gives back what it was sent.
var echoes = map[string]func(w http.ResponseWriter, value string){
	"header": func(w http.ResponseWriter, v string) { w.Header().Set("X-Echo", "got "+v) },
	"cookie": func(w http.ResponseWriter, v string) {
		w.Header().Add("Set-Cookie", "k="+url.QueryEscape(v)+"; Path=/")
	},
	"location": func(w http.ResponseWriter, v string) {
		w.Header().Set("Location", "https://evil.test/?k="+url.QueryEscape(v))
		w.WriteHeader(302)
	},
	"base64": func(w http.ResponseWriter, v string) {
		w.Header().Set("X-Echo", base64.StdEncoding.EncodeToString([]byte("u:"+v)))
	},
	"hex": func(w http.ResponseWriter, v string) { w.Header().Set("X-Echo", fmt.Sprintf("%x", v)) },
	"JSON": func(w http.ResponseWriter, v string) {
		w.Header().Set("X-Echo", strings.ReplaceAll(fmt.Sprintf("%q", v), "/", `\/`))
	},
	"name": func(w http.ResponseWriter, v string) { w.Header().Set(fmt.Sprintf("X-%x", v), "x") },
	"trailer": func(w http.ResponseWriter, v string) {
		w.Header().Set("Trailer", "X-Tail")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Tail", v)
	},
	"sudden trailer": func(w http.ResponseWriter, v string) {
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Tail", v)
	},
	"early hints": func(w http.ResponseWriter, v string) {
		w.Header().Set("Link", "<"+v+">")
		w.WriteHeader(103)
		w.Header().Del("Link")
	},
	"error": func(w http.ResponseWriter, v string) {
		w.Header().Set("Www-Authenticate", "Bearer realm=\""+v+"\"")
		w.WriteHeader(401)
	},
	"refresh": func(w http.ResponseWriter, v string) { w.Header().Set("Refresh", "0; url=/?"+url.PathEscape(v)) },
}

func TestEchoesInHeaders(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		echoes[strings.ReplaceAll(r.URL.Path[1:], "_", " ")](w, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}))
	s.bind(binding("b", "", bearer))
	for name := range echoes {
		for _, version := range []string{http1, http2} {
			got, _ := s.get(s.client(version), "/"+strings.ReplaceAll(name, " ", "_"))
			all := fmt.Sprint(got.Header, got.Trailer, got.Status)
			for _, dressed := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), fmt.Sprintf("%x", secret), "sk-Live", "c2stTGl2"} {
				if strings.Contains(strings.ToLower(all), strings.ToLower(dressed)) {
					t.Errorf("%s over %s: %s", name, version, all)
				}
			}
			if name != "early hints" && name != "name" && !strings.Contains(all, "[REDACTED]") {
				t.Errorf("%s over %s: nothing was replaced in %s", name, version, all)
			}
		}
	}
}
