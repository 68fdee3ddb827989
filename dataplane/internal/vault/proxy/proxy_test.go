// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// recorder is a server that remembers what it got.
func recorder(t testing.TB) *stage {
	var s *stage
	s = newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.note(r)
		_, _ = io.WriteString(w, "done\n")
	}))
	return s
}

func (s *stage) get(c *http.Client, path string) (*http.Response, string) {
	s.t.Helper()
	got, err := c.Get("https://" + host + ":" + s.portText() + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return got, string(body)
}

func TestEveryTypeOfAuthorization(t *testing.T) {
	for name, want := range map[string]struct{ auth, header, value string }{
		"bearer": {bearer, "Authorization", "Bearer " + secret},
		"basic":  {`"type":"basic","credential":"pair"`, "Authorization", "Basic dXNlcjpwYXNzd29yZC0xMjM0NQ=="},
		"apiKey": {`"type":"apiKey","name":"x-api-key","credential":"key"`, "X-Api-Key", secret},
		"custom": {`"type":"customHeaders","headers":[{"name":"X-Id","credential":"other"},{"name":"X-Secret","credential":"key"}]`,
			"X-Secret", secret},
		"none": {`"type":"passthrough"`, "Authorization", ""},
	} {
		for _, version := range []string{http1, http2} {
			t.Run(name+version, func(t *testing.T) {
				s := recorder(t)
				s.bind(binding("b", "", want.auth))
				got, body := s.get(s.client(version), "/v1/models?a=b")
				if got.StatusCode != 200 || body != "done\n" {
					t.Fatal(got.Status, body)
				}
				sent := <-s.seen
				if sent.Header.Get(want.header) != want.value || sent.RequestURI != "/v1/models?a=b" || sent.ProtoMajor != got.ProtoMajor {
					t.Errorf("%s %s %v", sent.Proto, sent.RequestURI, sent.Header)
				}
				if log := s.logged(); strings.Contains(log, secret) || !strings.Contains(log, `"binding":"b"`) || !strings.Contains(log, `"status":200`) {
					t.Error(log)
				}
			})
		}
	}
}

func TestRequestsWhoseCredentialCannotBeReadAreNotSent(t *testing.T) {
	for name, auth := range map[string]string{
		"bearer": `"type":"bearer","credential":"lost"`,
		"basic":  `"type":"basic","credential":"lost"`,
		"apiKey": `"type":"apiKey","name":"X-Key","credential":"lost"`,
		"custom": `"type":"customHeaders","headers":[{"name":"X-One","credential":"key"},{"name":"X-Two","credential":"lost"}]`,
		"places": bearer + `,"substitutions":[{"credential":"lost","placeholder":"__LOST__","in":["query"]}]`,
	} {
		for _, version := range []string{http1, http2} {
			t.Run(name+" "+version, func(t *testing.T) {
				s := recorder(t)
				s.bind(binding("lacks", `"hosts":["`+host+`"],"paths":["/lost/*"]`, auth) + "," +
					binding("has", `"hosts":["`+host+`"],"paths":["/kept/*"]`, bearer))
				client := s.client(version)
				for path, want := range map[string]int{"/lost/x": 502, "/kept/x": 200, "/other": 200} {
					got, err := client.Get("https://" + host + ":" + s.portText() + path)
					if err != nil {
						t.Fatal(err)
					}
					_ = got.Body.Close()
					if got.StatusCode != want {
						t.Errorf("%s: %s", path, got.Status)
					}
					if want == 502 {
						if got.Header.Get("X-Casulo-Vault") != "credential" {
							t.Error(got.Header)
						}
						continue
					}
					if sent := <-s.seen; sent.URL.Path != path || (sent.Header.Get("Authorization") != "") != (path == "/kept/x") {
						t.Error(sent.URL, sent.Header)
					}
				}
				if log := s.logged(); !strings.Contains(log, `"binding":"lacks"`) || !strings.Contains(log, "cannot be read") {
					t.Error(log)
				}
			})
		}
	}
}
