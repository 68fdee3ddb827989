// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/output"
)

// Headers of a logs answer.
const (
	cursorHeader = "EXECD-COMMANDS-TAIL-CURSOR"
	// truncatedHeader counts the bytes between the asked cursor and the first byte still kept.
	truncatedHeader = "EXECD-COMMANDS-TRUNCATED-BYTES"
)

// startFailure returns the outcome of a command that never ran, else nil.
func (c *Command) startFailure() *Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcome == nil || c.outcome.Start == nil {
		return nil
	}
	return c.outcome
}

func (c *Command) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcome == nil
}

func (c *Command) status() (*statusBody, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	base, end := c.log.Range()
	body := &statusBody{
		ID: c.ID, Content: c.content, Running: c.outcome == nil, StartedAt: stamp(c.started),
		OutputBytes: end, TruncatedBytes: base,
	}
	if c.archived != nil {
		content, err := c.archived.Bytes()
		if err != nil {
			return nil, err
		}
		body.Content = string(content)
	}
	if c.outcome == nil {
		return body, nil
	}
	code, finished := c.outcome.Code(), stamp(c.finished)
	body.ExitCode, body.FinishedAt, body.Reason = &code, &finished, c.outcome.Reason()
	body.MemoryLimitHit = c.outcome.Exit.MemoryLimitHit
	if body.Reason != "" {
		failure := c.outcome.Failure()
		body.Error = failure.Traceback[0]
	}
	return body, nil
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// logs answers with the output from a cursor up to now, without waiting for more.
func (s *Service) logs(w http.ResponseWriter, r *http.Request, id string) {
	c := s.lookup(w, id)
	if c == nil {
		return
	}
	cursor, err := parseCursor(r.URL.Query().Get("cursor"))
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	base, end := c.extent()
	start := min(max(cursor, base), end)
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set(cursorHeader, strconv.FormatInt(end, 10))
	header.Set("Content-Length", strconv.FormatInt(end-start, 10))
	if cursor < base {
		header.Set(truncatedHeader, strconv.FormatInt(base-cursor, 10))
	}
	w.WriteHeader(http.StatusOK)
	copyLog(w, c.output(), start, end)
}

func parseCursor(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	cursor, err := strconv.ParseInt(text, 10, 64)
	if err != nil || cursor < 0 {
		return 0, errors.New("cursor is a byte offset, 0 or more")
	}
	return cursor, nil
}

// extent is the readable range. While the command runs it never ends inside a character, since
// clients decode each answer for itself.
func (c *Command) extent() (base, end int64) {
	running := c.running()
	log := c.output()
	base, end = log.Range()
	if !running {
		return base, end
	}
	var last [utf8.UTFMax]byte
	from := max(base, end-utf8.UTFMax)
	n, err := log.ReadAt(last[:end-from], from)
	if err != nil || int64(n) != end-from {
		return base, end
	}
	return base, end - int64(output.Unfinished(last[:n]))
}

// copyLog sends a range. When bytes vanish meanwhile the answer is cut, never silently shortened.
func copyLog(w io.Writer, log *output.Log, from, to int64) {
	chunk := make([]byte, 32<<10)
	for from < to {
		n, err := log.ReadAt(chunk[:min(int64(len(chunk)), to-from)], from)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if _, err := w.Write(chunk[:n]); err != nil {
			return
		}
		from += int64(n)
	}
}
