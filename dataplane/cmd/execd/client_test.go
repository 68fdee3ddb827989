// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}

func (d *daemon) try(method, path string, body any, header http.Header) (*http.Response, error) {
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(body)
	default:
		content, err := json.Marshal(body)
		must(d.t, err)
		reader = bytes.NewReader(content)
	}
	request, err := http.NewRequest(method, d.url+path, reader)
	must(d.t, err)
	if header != nil {
		request.Header = header.Clone()
	}
	request.Header.Set("X-EXECD-ACCESS-TOKEN", token)
	return httpClient.Do(request)
}

// call returns the status and the whole body.
func (d *daemon) call(method, path string, body any) (int, string) {
	d.t.Helper()
	response, err := d.try(method, path, body, nil)
	must(d.t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must(d.t, err)
	return response.StatusCode, string(content)
}

// event is any event of a stream.
type event struct {
	Type         string
	Timestamp    int64
	Text         string
	Base64       string
	Offset       int64
	Reason       string
	Signal       string
	SessionReset bool `json:"session_reset"`
	Error        struct {
		Ename     string
		Evalue    string
		Traceback []string
	}
}

// result is a stream that was read to its end.
type result struct {
	t      *testing.T
	events []event
}

func (d *daemon) stream(path string, body any, raw bool) result {
	d.t.Helper()
	header := http.Header{}
	if raw {
		header.Set("EXECD-STREAM-FRAMING", "raw")
	}
	response, err := d.try("POST", path, body, header)
	must(d.t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must(d.t, err)
	if response.StatusCode != http.StatusOK {
		d.t.Fatalf("POST %s: %d %s", path, response.StatusCode, content)
	}
	return parseStream(d.t, content)
}

// run executes a command and reads its stream to the end.
func (d *daemon) run(body map[string]any) result {
	d.t.Helper()
	return d.stream("/command", body, false)
}

func (d *daemon) shell(text string) result {
	d.t.Helper()
	return d.run(map[string]any{"command": text})
}

// parseStream also checks what every stream has to keep: ASCII, one init first, one end last.
func parseStream(t *testing.T, content []byte) result {
	t.Helper()
	r := result{t: t}
	if bytes.ContainsFunc(content, func(c rune) bool { return c > 0x7e || (c < ' ' && c != '\n') }) {
		t.Error("the stream is not plain ASCII")
	}
	for _, frame := range strings.Split(strings.TrimSuffix(string(content), "\n\n"), "\n\n") {
		var e event
		if err := json.Unmarshal([]byte(frame), &e); err != nil {
			t.Fatalf("%q: %v", frame, err)
		}
		if e.Timestamp == 0 {
			t.Errorf("an event without time: %s", frame)
		}
		if e.Type != "ping" {
			r.events = append(r.events, e)
		}
	}
	terminal := 0
	for i, e := range r.events {
		if (e.Type == "init") != (i == 0) {
			t.Errorf("event %d is %s", i, e.Type)
		}
		if e.Type == "error" || e.Type == "execution_complete" {
			terminal++
		}
	}
	if last := r.last().Type; terminal != 1 || (last != "error" && last != "execution_complete") {
		t.Errorf("%d terminal events, the last event is %s", terminal, last)
	}
	return r
}

func (r result) id() string { return r.events[0].Text }

func (r result) last() event { return r.events[len(r.events)-1] }

// texts are the events of a stream, as line framing sends them.
func (r result) texts(kind string) []string {
	var texts []string
	for _, e := range r.events {
		if e.Type == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// bytes are the exact bytes of a stream, as raw framing sends them.
func (r result) bytes(kind string) []byte {
	var all []byte
	for _, e := range r.events {
		if e.Type != kind {
			continue
		}
		decoded, err := base64.StdEncoding.DecodeString(e.Base64)
		must(r.t, err)
		all = append(append(all, e.Text...), decoded...)
	}
	return all
}

func (r result) succeeded() result {
	r.t.Helper()
	if r.last().Type != "execution_complete" {
		r.t.Fatalf("the command failed: %+v", r.events)
	}
	return r
}

func (r result) failedWith(name, value string) result {
	r.t.Helper()
	if e := r.last().Error; e.Ename != name || e.Evalue != value {
		r.t.Fatalf("wanted %s %s, got %+v", name, value, r.last())
	}
	return r
}

func (r result) printed(want ...string) result {
	r.t.Helper()
	equal(r.t, strings.Join(r.texts("stdout"), "|"), strings.Join(want, "|"))
	return r
}
