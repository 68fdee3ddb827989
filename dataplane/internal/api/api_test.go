// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
)

func newTestRouter() *Router {
	r := NewRouter("secret")
	echo := func(w http.ResponseWriter, req *http.Request) {
		if _, err := w.Write([]byte(req.URL.EscapedPath())); err != nil {
			panic(err)
		}
	}
	r.Open("GET /ping", echo)
	r.Handle("GET /files/info", echo)
	r.Handle("POST /files/info", echo)
	r.Prefix("/proxy/", http.HandlerFunc(echo))
	return r
}

func call(r http.Handler, method, target, token string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, target, nil)
	request.Header.Set(TokenHeader, token)
	recorder := httptest.NewRecorder()
	r.ServeHTTP(recorder, request)
	return recorder
}

func TestRouter(t *testing.T) {
	router := newTestRouter()
	for _, c := range []struct {
		method, target, token string
		status                int
		body                  string
	}{
		{"GET", "/ping", "", 200, "/ping"},
		{"GET", "/files/info", "secret", 200, "/files/info"},
		{"GET", "//files/../files/info/", "secret", 200, "/files/info"},
		{"GET", "/files/info?path=/a%3Bb&path=%C3%A4+%2B&path", "secret", 200, "/files/info"},
		{"GET", "/files/info?path=/a;b", "secret", 400, `"code":"INVALID_REQUEST_BODY"`},
		{"POST", "/files/info?path=/a&b=%zz", "secret", 400, `"message":"the query is malformed`},
		{"GET", "/files/info?a=%", "secret", 400, `"code":"INVALID_REQUEST_BODY"`},
		{"GET", "/files/info?path=/a;b", "wrong", 401, `"code":"UNAUTHENTICATED"`},
		{"GET", "/nowhere?a;b", "secret", 404, `"code":"NOT_FOUND"`},
		{"GET", "/proxy/80/?a;b=%zz", "secret", 200, "/proxy/80/"},
		{"GET", "/files/info", "wrong", 401, `"code":"UNAUTHENTICATED"`},
		{"GET", "/files/info", "", 401, `"message":`},
		{"GET", "/nowhere", "", 401, `"error":`},
		{"GET", "/nowhere", "secret", 404, `"code":"NOT_FOUND"`},
		{"DELETE", "/files/info", "secret", 405, `"code":"INVALID_REQUEST_BODY"`},
		{"GET", "/proxy/80/a//b%2Fc/../d", "secret", 200, "/proxy/80/a//b%2Fc/../d"},
		{"GET", "/proxy/80/", "", 401, `"code":"UNAUTHENTICATED"`},
	} {
		got := call(router, c.method, c.target, c.token)
		if got.Code != c.status || !strings.Contains(got.Body.String(), c.body) {
			t.Errorf("%s %s: %d %s", c.method, c.target, got.Code, got.Body)
		}
	}
	if allow := call(router, "DELETE", "/files/info", "secret").Header().Get("Allow"); !strings.Contains(allow, "POST") {
		t.Errorf("Allow is %q", allow)
	}
}

func TestReadJSON(t *testing.T) {
	for body, want := range map[string]int{`{"a":1,"unknown":2}`: 200, `null`: 200, ``: 400, `  `: 400, `{"a":"x"}`: 400, `{} {}`: 400} {
		recorder := httptest.NewRecorder()
		var v struct{ A int }
		ok := ReadJSON(recorder, httptest.NewRequest("POST", "/", strings.NewReader(body)), &v)
		if recorder.Code != want || ok != (want == 200) {
			t.Errorf("%q: %v %d", body, ok, recorder.Code)
		}
	}
}

func TestExpandPath(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, found := map[string]string{"HOME": "/root", "A": "/data", "B_1": "x"}[name]
		return value, found
	}
	for given, want := range map[string]string{
		"": "", "~": "/root", "~/x": "/root/x", "~user": "/base/~user", "$A/f": "/data/f", "${A}f": "/dataf",
		"$B_1": "/base/x", "$NONE/x": "/x", "a/../b": "/base/b", "/a/./b//c": "/a/b/c", "$": "/base/$", "${A": "/base/${A",
		"$1": "/base/$1", "/a$": "/a$", "/${}": "/${}", "/..": "/",
	} {
		if got := ExpandPath(given, "/base", lookup); got != want {
			t.Errorf("%q becomes %q, not %q", given, got, want)
		}
	}
}

func FuzzExpandPath(f *testing.F) {
	for _, seed := range []string{"~/a", "$A/${B}", "${", "$$", "../../x", "a\x00b"} {
		f.Add(seed)
	}
	lookup := func(name string) (string, bool) { return "/v-" + name, IsName(name) }
	f.Fuzz(func(t *testing.T, given string) {
		got := ExpandPath(given, "/base", lookup)
		if given != "" && (!path.IsAbs(got) || path.Clean(got) != got) {
			t.Errorf("%q becomes %q", given, got)
		}
	})
}

func TestIDs(t *testing.T) {
	if id := NewID(); len(id) != 32 || id == NewID() {
		t.Errorf("%q", id)
	}
	if id := NewUUID(); len(id) != 36 || id[14] != '4' || !strings.Contains("89ab", id[19:20]) {
		t.Errorf("%q", id)
	}
}
