// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

func redacting(text string) string {
	return strings.TrimSuffix(text, "}") + `,"redactBodies":true}`
}

func encoded(kind string, text string) []byte {
	var out bytes.Buffer
	var to io.WriteCloser
	switch kind {
	case "gzip":
		to = gzip.NewWriter(&out)
	case "deflate":
		to = zlib.NewWriter(&out)
	case "br":
		to = brotli.NewWriter(&out)
	case "zstd":
		to, _ = zstd.NewWriter(&out)
	default:
		return []byte(text)
	}
	_, _ = io.WriteString(to, text)
	_ = to.Close()
	return out.Bytes()
}

func TestEchoesInBodies(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := r.URL.Query().Get("as")
		if kind != "" {
			w.Header().Set("Content-Encoding", kind)
		}
		value := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		text := "before " + value + ", " + base64.StdEncoding.EncodeToString([]byte("u:"+value)) + ", " + hex.EncodeToString([]byte(value)) + " after"
		for _, b := range encoded(kind, text) { // a piece for each byte
			_, _ = w.Write([]byte{b})
			w.(http.Flusher).Flush()
		}
	}))
	s.bind(redacting(binding("b", "", bearer)))
	for _, kind := range []string{"", "gzip", "deflate", "br", "zstd", "identity"} {
		for _, version := range []string{http1, http2} {
			got, body := s.get(s.client(version), "/?as="+kind)
			want := "before [REDACTED], " + base64.StdEncoding.EncodeToString([]byte("u:"))[:2] + "[REDACTED], [REDACTED] after"
			if body != want || got.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s over %s: %q %v", kind, version, body, got.Header)
			}
		}
	}
}

func TestBodiesThatCannotBeLookedIntoAreRefused(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			w.Header().Set(name, values[0])
		}
		if strings.HasPrefix(r.URL.Path, "/part") {
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization")+r.Header.Get("Range"))
	}))
	s.bind(redacting(binding("b", "", bearer)))
	c := s.client(http1)
	for _, target := range []string{"/?Content-Encoding=aes128gcm", "/?Content-Encoding=gzip,x", "/part", "/?Content-Type=multipart/byteranges%3Bboundary=x",
		"/?Content-Type=application/grpc", "/?Content-Range=bytes+1-2/3"} {
		got, body := s.get(c, target)
		if got.StatusCode != 502 || !strings.Contains(body, "cannot be") || strings.Contains(body, secret) {
			t.Errorf("%s: %s %q", target, got.Status, body)
		}
	}
	if log := s.logged(); strings.Count(log, `"status":502`) != 4 || strings.Contains(log, secret) {
		t.Error(log)
	}
	request, _ := http.NewRequest("GET", "https://"+host+":"+s.portText()+"/", nil)
	request.Header.Set("Range", "bytes=0-9")
	got, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if body, _ := io.ReadAll(got.Body); got.StatusCode != 200 || string(body) != "Bearer [REDACTED]" {
		t.Errorf("%s %q", got.Status, body)
	}
}

func TestWhatOneRequestLeavesAnotherCannotFetch(t *testing.T) {
	kept := ""
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keep" {
			kept = r.Header.Get("Authorization")
		}
		_, _ = io.WriteString(w, kept)
	}))
	s.bind(redacting(binding("b", `"hosts":["`+host+`"],"paths":["/keep"]`, bearer)))
	s.get(s.client(http1), "/keep")
	if _, body := s.get(s.client(http1), "/fetch"); body != "Bearer [REDACTED]" {
		t.Error(body)
	}
}

// events sends one line, and the next when it is told to.
func TestEventsComeAtOnce(t *testing.T) {
	next := make(chan bool)
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for range 3 {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", r.Header.Get("Authorization"))
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	for _, text := range []string{binding("b", "", bearer), redacting(binding("b", "", bearer))} {
		s.bind(text)
		got, err := s.client(http2).Get("https://" + host + ":" + s.portText() + "/")
		if err != nil {
			t.Fatal(err)
		}
		want := "data: Bearer " + secret + "\n\n"
		if strings.Contains(text, "redact") {
			want = "data: Bearer [REDACTED]\n\n"
		}
		line := make([]byte, len(want))
		for range 3 {
			if _, err := io.ReadFull(got.Body, line); err != nil || string(line) != want {
				t.Errorf("%q %v", line, err)
			}
			next <- true
		}
		got.Body.Close()
	}
}

// zeros is a body that is never in memory.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

const huge = 64 << 20

func TestHugeUploadsStreamWithTheCredentialFirst(t *testing.T) {
	heads := make(chan string, 1)
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header.Get("Authorization")
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		_, _ = fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
	}))
	s.bind(binding("b", "", bearer))
	for _, size := range []int64{100 << 10, 1<<20 + 1, huge} {
		sum := sha256.New()
		_, _ = io.Copy(sum, &zeros{size})
		want := fmt.Sprintf("%d %x", size, sum.Sum(nil))
		for _, version := range []string{http1, http2} {
			for _, how := range []string{"length", "chunked", "expect"} {
				request, _ := http.NewRequest("POST", "https://"+host+":"+s.portText()+"/up", io.NopCloser(&zeros{size}))
				if how != "chunked" {
					request.ContentLength = size
				}
				if how == "expect" {
					request.Header.Set("Expect", "100-continue")
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got, err := s.client(version).Do(request)
				if err != nil {
					t.Fatal(version, how, size, err)
				}
				body, _ := io.ReadAll(got.Body)
				got.Body.Close()
				runtime.ReadMemStats(&after)
				if head := <-heads; head != "Bearer "+secret || string(body) != want {
					t.Errorf("%s %s %d: %q %q", version, how, size, head, body)
				}
				if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
					t.Errorf("%s %s %d: the heap grew by %d", version, how, size, grown)
				}
			}
		}
	}
}

func TestEarlyAnswers(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	s.bind(binding("b", "", bearer))
	for _, version := range []string{http1, http2} {
		request, _ := http.NewRequest("POST", "https://"+host+":"+s.portText()+"/up", io.NopCloser(&zeros{huge}))
		request.ContentLength = huge
		request.Header.Set("Expect", "100-continue")
		got, err := s.client(version).Do(request)
		if err != nil {
			t.Fatal(version, err)
		}
		got.Body.Close()
		if got.StatusCode != 413 || got.Header.Get("X-Echo") != "Bearer [REDACTED]" {
			t.Errorf("%s: %s %v", version, got.Status, got.Header)
		}
	}
}

func TestAnswersWithoutBodies(t *testing.T) {
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		default:
			w.Header().Set("Content-Length", "12345")
		}
	}))
	for _, text := range []string{binding("b", `"hosts":["`+host+`"],"methods":["GET","HEAD"]`, bearer),
		redacting(binding("b", `"hosts":["`+host+`"],"methods":["GET","HEAD"]`, bearer))} {
		s.bind(text)
		for _, version := range []string{http1, http2} {
			c := s.client(version)
			for path, status := range map[string]int{"/204": 204, "/304": 304} {
				if got, body := s.get(c, path); got.StatusCode != status || body != "" || got.Header.Get("Content-Type") != "" {
					t.Errorf("%s: %s %q %v", path, got.Status, body, got.Header)
				}
			}
			got, err := c.Head("https://" + host + ":" + s.portText() + "/head")
			if err != nil {
				t.Fatal(err)
			}
			if got.ContentLength != 12345 {
				t.Error(got.ContentLength)
			}
		}
	}
}

func TestPlaceholders(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", "", `"type":"passthrough","substitutions":[{"credential":"key","placeholder":"__KEY__","in":["path","query","header","body"]}]`))
	send := func(kind, target, header, body string, chunked bool) *http.Request {
		t.Helper()
		request, _ := http.NewRequest("POST", "https://"+host+":"+s.portText()+target, io.NopCloser(strings.NewReader(body)))
		if !chunked {
			request.ContentLength = int64(len(body))
		}
		request.Header.Set("Content-Type", kind)
		request.Header.Set("Authorization", header)
		got, err := s.client(http1).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if text, _ := io.ReadAll(got.Body); got.StatusCode != 200 {
			t.Fatal(got.Status, string(text))
		}
		return <-s.seen
	}
	sent := send("application/json", "/p/__KEY__/x?a=__KEY__&b=2", "Token __KEY__", `{"k":"__KEY__","n":"__KE"}`, false)
	body, _ := io.ReadAll(sent.Body)
	if sent.URL.Path != "/p/"+secret+"/x" || strings.Count(sent.RequestURI, "/") != 3 || sent.URL.Query().Get("a") != secret || sent.URL.Query().Get("b") != "2" ||
		sent.Header.Get("Authorization") != "Token "+secret || string(body) != `{"k":"`+secret+`","n":"__KE"}` || sent.ContentLength != int64(len(body)) {
		t.Errorf("%s %v %q %d", sent.RequestURI, sent.Header, body, sent.ContentLength)
	}
	sent = send("application/x-www-form-urlencoded", "/", "Basic "+base64.StdEncoding.EncodeToString([]byte("me:__KEY__")), "a=__KEY__&b=1", true)
	body, _ = io.ReadAll(sent.Body)
	if _, password, _ := sent.BasicAuth(); password != secret || !strings.HasSuffix(string(body), "%3D%3D&b=1") {
		t.Errorf("%v %q", sent.Header, body)
	}
	long := strings.Repeat("x__KE", 300000) + "Y__"
	sent = send("text/plain", "/", "x", long, false)
	body, _ = io.ReadAll(sent.Body)
	if want := strings.ReplaceAll(long, "__KEY__", secret); string(body) != want {
		t.Errorf("%d bytes, want %d", len(body), len(want))
	}
	if log := s.logged(); strings.Contains(log, secret) || !strings.Contains(log, "/p/__KEY__/x") {
		t.Error(log)
	}
}

func TestPlaceholdersLeaveInNoSpelling(t *testing.T) {
	s := recorder(t)
	s.bind(binding("b", `"hosts":["`+host+`"],"paths":["/p/*"]`,
		`"type":"passthrough","substitutions":[{"credential":"key","placeholder":"__KEY__","in":["header"]}]`))
	for _, target := range []string{"/p/__KEY__", "/p/%5F_KEY__", "/p/x?a=_%5FKEY__", "/o?a=%255F_KEY__", "/o/__%4bEY__"} {
		if got, _ := s.get(s.client(http1), target); got.StatusCode != 403 || got.Header.Get("X-Casulo-Vault") != "placeholder" {
			t.Error(target, got.Status)
		}
	}
}

func TestTheClientCanLeave(t *testing.T) {
	left := make(chan bool, 1)
	s := newStage(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			left <- true
		case <-time.After(20 * time.Second):
			left <- false
		}
	}))
	s.bind(binding("b", "", bearer))
	for _, version := range []string{http1, http2} {
		got, err := s.client(version).Get("https://" + host + ":" + s.portText() + "/")
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if !<-left {
			t.Error(version, "the server did not hear of it")
		}
	}
}
