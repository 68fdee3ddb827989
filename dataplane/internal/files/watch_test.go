// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// watching reads the events of a watch.
type watching struct {
	t      *testing.T
	lines  chan string
	cancel context.CancelFunc
	dir    string
}

func (b *bench) watch(pairs ...string) *watching {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, "GET", b.server.URL+query("/files/watch", pairs...), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	w := &watching{t: b.t.(*testing.T), lines: make(chan string, 1000), cancel: cancel, dir: b.dir}
	b.t.Cleanup(func() { cancel(); response.Body.Close() })
	same(b.t, response.StatusCode, 200)
	same(b.t, response.Header.Get("Content-Type"), "text/event-stream")
	go func() {
		defer close(w.lines)
		for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
			if scanner.Text() != "" {
				w.lines <- scanner.Text()
			}
		}
	}()
	if first := w.next(); !strings.HasPrefix(first, "watching ") {
		b.t.Fatal(first)
	}
	return w
}

// next is the type and relative path of the next event.
func (w *watching) next() string {
	w.t.Helper()
	select {
	case line, open := <-w.lines:
		if !open {
			return "closed"
		}
		var e watchEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Timestamp == 0 {
			w.t.Fatal(line, err)
		}
		text := e.Type + " " + strings.TrimPrefix(strings.TrimPrefix(e.Path, w.dir), "/")
		if e.From != "" {
			text += " from " + strings.TrimPrefix(e.From, w.dir+"/")
		}
		return text
	case <-time.After(60 * time.Second):
		return "silence"
	}
}

// until collects events up to and including the wanted one.
func (w *watching) until(want string) []string {
	w.t.Helper()
	var seen []string
	for {
		event := w.next()
		seen = append(seen, event)
		if event == want {
			return seen
		}
		if event == "silence" || event == "closed" {
			w.t.Fatalf("%q did not come, only %q", want, seen)
		}
	}
}

func count(events []string, wanted string) int {
	n := 0
	for _, event := range events {
		if event == wanted {
			n++
		}
	}
	return n
}

func TestWatchOneDirectory(t *testing.T) {
	b := newBench(t)
	write(t, b.at("sub/below"), "x")
	w := b.watch("path", b.dir)
	write(t, b.at("f\xff"), "content")
	w.until("written f\U0010FEFF")
	if err := os.Rename(b.at("f\xff"), b.at("g")); err != nil {
		t.Fatal(err)
	}
	w.until("renamed g from f\U0010FEFF")
	if err := os.Chmod(b.at("g"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.until("attributes g")
	write(t, b.at("sub/unseen"), "x")
	b.remove("/files", b.at("g")).want(200)
	for _, event := range w.until("deleted g") {
		if strings.Contains(event, "unseen") {
			t.Fatal(event)
		}
	}
}

func TestWatchWholeTree(t *testing.T) {
	b := newBench(t)
	write(t, b.at("old/f"), "x")
	w := b.watch("path", b.dir, "recursive", "true")
	write(t, b.at("old/f"), "y")
	w.until("written old/f")
	write(t, b.at("new/deep/er/g"), "x")
	seen := w.until("written new/deep/er/g")
	for _, want := range []string{"created new", "created new/deep", "created new/deep/er"} {
		if count(seen, want) != 1 {
			t.Errorf("%q is there %d times: %q", want, count(seen, want), seen)
		}
	}
	if err := os.Rename(b.at("new"), b.at("moved")); err != nil {
		t.Fatal(err)
	}
	w.until("renamed moved from new")
	write(t, b.at("moved/deep/er/g"), "again")
	w.until("written moved/deep/er/g")
	b.remove("/directories", b.at("moved")).want(200)
	w.until("deleted moved")
}

func TestWatchHidesUnfinishedUploads(t *testing.T) {
	b := newBench(t)
	w := b.watch("path", b.dir)
	b.upload("", put(b.at("f"), strings.Repeat("x", 1<<20))).want(200)
	if seen := w.until("written f"); len(seen) != 1 {
		t.Fatalf("%q", seen)
	}
}

func TestWatchCoalescesAndEnds(t *testing.T) {
	b := newBench(t)
	write(t, b.at("dir/f"), "")
	w := b.watch("path", b.at("dir"))
	file, err := os.OpenFile(b.at("dir/f"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		if _, err := file.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
	file.Close()
	if seen := w.until("written dir/f"); len(seen) > 100 {
		t.Fatalf("%d events", len(seen))
	}
	if err := os.RemoveAll(b.at("dir")); err != nil {
		t.Fatal(err)
	}
	w.until("ended dir")
	same(t, w.next(), "closed")
}

func TestWatchOfAFileAndOfNothing(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "")
	w := b.watch("path", b.at("f"))
	write(t, b.at("f"), "x")
	w.until("written f")
	b.get("/files/watch", "path", b.at("none")).wantError(404, "FILE_NOT_FOUND")
	b.get("/files/watch").wantError(400, "MISSING_QUERY")
	b.get("/files/watch", "path", b.dir, "recursive", "maybe").wantError(400, "INVALID_REQUEST_BODY")
}

func TestWatchesOfCallersWhoLeftAreClosed(t *testing.T) {
	b := newBench(t)
	before := openDescriptors(t)
	for range 20 {
		b.watch("path", b.dir, "recursive", "true").cancel()
	}
	http.DefaultClient.CloseIdleConnections()
	waitFor(t, func() bool { return openDescriptors(t) <= before+2 })
}
