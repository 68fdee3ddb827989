// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

const (
	watchSettle    = 20 * time.Millisecond // changes of one path within it become one event
	watchHeartbeat = 15 * time.Second
	watchBatch     = 1024
)

// watchEvent is one line of a watch. Types: watching (armed; what happens from now on is reported), created, modified
// (content is changing), written (closed after writing, or put in place whole), attributes, deleted, renamed (with
// from), overflow (changes were lost: list again), incomplete (a directory could not be watched), ended (with reason).
type watchEvent struct {
	Type      string `json:"type"`
	Timestamp int64  `json:"timestamp"`
	Path      string `json:"path,omitempty"`
	From      string `json:"from,omitempty"`
	IsDir     bool   `json:"is_dir,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// watch streams the changes at a path until the caller leaves or the path is gone.
func (c *call) watch() error {
	root, err := c.path()
	if err != nil {
		return err
	}
	recursive, err := boolOf(c.request.URL.Query().Get("recursive"))
	if err != nil {
		return err
	}
	w, err := c.newWatcher(root, recursive)
	if err != nil {
		return err
	}
	defer closeQuietly(w.queue)
	c.beginWatch()
	first := watchEvent{Type: "watching", Path: EscapeName(root), Recursive: recursive}
	if err := c.sendEvents([]watchEvent{first}); err != nil {
		return err
	}
	// The deadline wakes a read that waits; the loop looks at the context before each one.
	stop := context.AfterFunc(c.request.Context(), func() { _ = w.queue.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return c.follow(w)
}

func (c *call) newWatcher(root string, recursive bool) (*watcher, error) {
	st, err := statAt(unix.AT_FDCWD, root, 0)
	if err != nil {
		return nil, failed("watch", root, err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, watchRefused(root, err)
	}
	w := &watcher{
		ctx: c.request.Context(), root: root, isDir: st.isDir(), recursive: recursive && st.isDir(),
		hidden: c.service.journal.prefix, fd: fd, queue: os.NewFile(uintptr(fd), "inotify"),
		paths: map[int]string{}, watches: map[string]int{}, latest: map[string]string{},
	}
	if err := w.arm(); err != nil {
		closeQuietly(w.queue)
		return nil, watchRefused(root, err)
	}
	return w, nil
}

// watchRefused names the kernel setting when a limit is the reason.
func watchRefused(root string, err error) error {
	switch {
	case is(err, unix.ENOSPC):
		return fail(http.StatusServiceUnavailable, api.CodeUnavailable,
			"no more directories can be watched: the kernel's fs.inotify.max_user_watches is reached")
	case is(err, unix.EMFILE):
		return fail(http.StatusServiceUnavailable, api.CodeUnavailable,
			"no more watches can be opened: the kernel's fs.inotify.max_user_instances is reached")
	}
	return failed("watch", root, err)
}

func (c *call) beginWatch() {
	header := c.writer.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no")
	c.committed = true
	c.writer.WriteHeader(http.StatusOK)
}

// follow reads the kernel's queue and sends what settles. A slow caller holds this loop up; the kernel's own bounded
// queue then overflows, which is reported.
func (c *call) follow(w *watcher) error {
	buffer := make([]byte, 64<<10)
	for {
		_ = w.queue.SetReadDeadline(w.nextDeadline()) // cannot fail on a pollable descriptor
		if c.request.Context().Err() != nil {
			return nil
		}
		n, err := w.queue.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return failed("watch", w.root, unwrapPath(err))
		}
		w.take(buffer[:max(n, 0)])
		if err != nil || w.isDue() {
			if err := c.sendEvents(w.settled()); err != nil {
				return nil // the caller left
			}
		}
		if w.ended {
			return nil
		}
	}
}

// sendEvents writes one frame per event, or an empty line as a sign of life.
func (c *call) sendEvents(events []watchEvent) error {
	var out []byte
	for _, event := range events {
		event.Timestamp = time.Now().UnixMilli()
		text, err := json.Marshal(event)
		if err != nil {
			return err
		}
		out = append(appendASCII(out, string(text)), "\n\n"...)
	}
	if len(events) == 0 {
		out = []byte("\n")
	}
	if _, err := c.writer.Write(out); err != nil {
		return err
	}
	return http.NewResponseController(c.writer).Flush()
}

// appendASCII escapes what is not ASCII in JSON text: some clients split streams at Unicode line boundaries.
func appendASCII(out []byte, text string) []byte {
	const digits = "0123456789abcdef"
	for _, r := range text {
		if r < 0x80 {
			out = append(out, byte(r))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = append(out, '\\', 'u', digits[unit>>12], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
		}
	}
	return out
}
