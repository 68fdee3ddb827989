// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestFailures(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {})
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	for _, port := range []int{portOf(dead.Listener.Addr()), rawApp(t, "tcp", "127.0.0.1:0", func(string) string { return "no http\r\n" }),
		rawApp(t, "tcp", "127.0.0.1:0", func(string) string { return "" })} {
		b.base = fmt.Sprintf("http://%s/proxy/%d", b.front, port)
		for _, header := range []http.Header{nil, {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}} {
			response, body := b.do("GET", "/", nil, header)
			same(t, fmt.Sprint(response.StatusCode, body, response.Header.Get("Content-Type")), "502Bad Gatewaytext/plain; charset=utf-8")
		}
	}
	for _, bad := range []string{"0", "65536", "x", "-1", "080", "", "99999999999999999999"} {
		b.base = "http://" + b.front + "/proxy/" + bad
		response, body := b.do("GET", "/x", nil, nil)
		if response.StatusCode != 400 || !strings.Contains(body, `"code":"INVALID_REQUEST_BODY"`) {
			t.Errorf("port %q: %d %s", bad, response.StatusCode, body)
		}
	}
	response, err := client.Get(fmt.Sprintf("http://%s/proxy/%d/", b.front, b.port))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	same(t, response.StatusCode, 401)
}

func TestAnAnswerCutShortIsNoCompleteAnswer(t *testing.T) {
	for _, reply := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		port := rawApp(t, "tcp", "127.0.0.1:0", func(string) string { return reply })
		b := &bench{t: t}
		b.front, _ = front(t)
		_, reader := b.raw(fmt.Sprintf("GET /proxy/%d/ HTTP/1.1", port))
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); err == nil {
			t.Errorf("%q passed for complete", body)
		}
	}
}
