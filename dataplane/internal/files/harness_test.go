// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// bench is the service on a real socket and a directory of its own on a real file system.
type bench struct {
	t       testing.TB
	dir     string
	state   string
	service *Service
	server  *httptest.Server
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), state: t.TempDir()}
	if err := os.Chmod(filepath.Dir(b.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	b.start()
	return b
}

func (b *bench) start() {
	b.service = New(Config{
		SandboxID: "test", Base: b.dir, StateDirs: []string{b.state},
		Lookup: func(name string) (string, bool) {
			value, ok := map[string]string{"HOME": b.dir, "SUB": "sub"}[name]
			return value, ok
		},
	})
	router := api.NewRouter("")
	b.service.Routes(router)
	b.server = httptest.NewServer(router)
	b.t.Cleanup(b.server.Close)
}

func (b *bench) at(elements ...string) string {
	return filepath.Join(append([]string{b.dir}, elements...)...)
}

// answer is a finished response.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

func (b *bench) do(method, route string, body io.Reader, header http.Header) answer {
	b.t.Helper()
	request, err := http.NewRequest(method, b.server.URL+route, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer{b.t, response.StatusCode, response.Header, text}
}

func query(route string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	return route + "?" + values.Encode()
}

func (b *bench) get(route string, pairs ...string) answer {
	b.t.Helper()
	return b.do("GET", query(route, pairs...), nil, nil)
}

func (b *bench) remove(route string, paths ...string) answer {
	b.t.Helper()
	var pairs []string
	for _, p := range paths {
		pairs = append(pairs, "path", p)
	}
	return b.do("DELETE", query(route, pairs...), nil, nil)
}

func (b *bench) post(route string, v any) answer {
	b.t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do("POST", route, bytes.NewReader(body), http.Header{"Content-Type": {"application/json"}})
}

// file is one pair of an upload.
type file struct {
	metadata map[string]any
	content  []byte
}

func form(files ...file) (body []byte, contentType string) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	for _, f := range files {
		text, _ := json.Marshal(f.metadata)
		part, _ := w.CreateFormFile("metadata", "metadata")
		_, _ = part.Write(text)
		part, _ = w.CreateFormFile("file", "x")
		_, _ = part.Write(f.content)
	}
	_ = w.Close()
	return out.Bytes(), w.FormDataContentType()
}

func (b *bench) upload(prefix string, files ...file) answer {
	b.t.Helper()
	body, kind := form(files...)
	return b.do("POST", prefix+"/files/upload", bytes.NewReader(body), http.Header{"Content-Type": {kind}})
}

func put(path, content string) file {
	return file{map[string]any{"path": path, "mode": 644, "owner": nil, "group": nil}, []byte(content)}
}

func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d instead of %d: %s", a.status, status, a.body)
	}
	return a
}

func (a answer) wantError(status int, code string) answer {
	a.t.Helper()
	var body struct{ Code, Message string }
	a.want(status).decode(&body)
	if body.Code != code || body.Message == "" {
		a.t.Fatalf("error %+v, code %q expected", body, code)
	}
	return a
}

func (a answer) decode(v any) answer {
	a.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		a.t.Fatalf("%v in %q", err, a.body)
	}
	return a
}

func (a answer) infos() []FileInfo {
	a.t.Helper()
	var list []FileInfo
	a.want(200).decode(&list)
	if list == nil {
		a.t.Fatal("the list is null")
	}
	return list
}

func (a answer) relative(root string) []string {
	a.t.Helper()
	names := []string{}
	for _, info := range a.infos() {
		names = append(names, strings.TrimPrefix(info.Path, root+"/"))
	}
	return names
}

func write(t testing.TB, p, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, p string) string {
	t.Helper()
	content, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func link(t testing.TB, target, p string) {
	t.Helper()
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func words(values ...any) string { return strings.TrimSpace(fmt.Sprintln(values...)) }

func sameList(t testing.TB, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// leftovers finds unfinished files below a directory.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), partPrefix) {
			found = append(found, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// smallDisk mounts a tmpfs of the given size and unmounts it at the end.
func smallDisk(t testing.TB, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("casulo-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("CANNOT RUN HERE: mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("CANNOT RUN HERE: needs root")
	}
}
