// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/command"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/stream"
)

const (
	cursorHeader = "EXECD-ISOLATED-TAIL-CURSOR"
	// truncatedHeader counts the bytes between the asked cursor and the first byte still kept.
	truncatedHeader = "EXECD-ISOLATED-TRUNCATED-BYTES"
	maxRead         = 16 << 20
	maxRunSeconds   = 366 * 24 * 3600
)

// sessionBody describes a session; the settings are those it was created with.
type sessionBody struct {
	SessionID     string    `json:"session_id"`
	Status        string    `json:"status"`
	CreatedAt     time.Time `json:"created_at"`
	LastRunAt     time.Time `json:"last_run_at"`
	IdleRemaining *int64    `json:"idle_remaining_seconds,omitempty"`
}

type describedBody struct {
	sessionBody
	settings
}

func (s *session) summary() sessionBody {
	s.mu.Lock()
	defer s.mu.Unlock()
	body := sessionBody{SessionID: s.id, Status: statusActive, CreatedAt: stamp(s.created), LastRunAt: stamp(s.lastRun)}
	if !s.world.alive() {
		body.Status = statusDead
	}
	if s.settings.IdleSeconds > 0 {
		left := int64(math.Ceil(max(0, s.idleLeft().Seconds())))
		body.IdleRemaining = &left
	}
	return body
}

func (s *session) describe() describedBody { return describedBody{s.summary(), s.settings} }

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func (s *Service) list(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.created.UnixNano(), b.created.UnixNano()) })
	bodies := make([]sessionBody, 0, len(all))
	for _, found := range all {
		bodies = append(bodies, found.summary())
	}
	api.WriteJSON(w, http.StatusOK, map[string]any{"sessions": bodies})
}

func (s *Service) show(w http.ResponseWriter, _ *http.Request, found *session) {
	api.WriteJSON(w, http.StatusOK, found.describe())
}

type runRequest struct {
	Code           string            `json:"code"`
	Envs           map[string]string `json:"envs"`
	TimeoutSeconds *float64          `json:"timeout_seconds"`
	Background     bool              `json:"background"`
}

func (r *runRequest) check() error {
	switch {
	case strings.TrimSpace(r.Code) == "":
		return errors.New("code is empty")
	case strings.ContainsRune(r.Code, 0):
		return errors.New("code contains a NUL byte")
	case r.TimeoutSeconds != nil && !(*r.TimeoutSeconds >= 0 && *r.TimeoutSeconds <= maxRunSeconds):
		return fmt.Errorf("timeout_seconds is not from 0 (none) to %d", maxRunSeconds)
	}
	for name, value := range r.Envs {
		if !api.IsName(name) || !environment.Transferable(name, value) {
			return fmt.Errorf("envs: %q cannot be a variable", name)
		}
	}
	return nil
}

func (r *runRequest) limit() time.Duration {
	if r.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*r.TimeoutSeconds * float64(time.Second))
}

func (s *Service) run(w http.ResponseWriter, r *http.Request, found *session) {
	var wanted runRequest
	if !api.ReadJSON(w, r, &wanted) {
		return
	}
	err := wanted.check()
	if err == nil && wanted.Background {
		err = found.checkBackground()
	}
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	if wanted.Background {
		found.runBackground(w, &wanted)
		return
	}
	started, reader, err := found.begin(r.Context(), &wanted)
	if err != nil {
		refuseRun(w, err)
		return
	}
	follow(w, r, started, reader)
}

// begin waits for the turn and starts a foreground run.
func (s *session) begin(ctx context.Context, wanted *runRequest) (*run, *output.Reader, error) {
	if err := s.enter(ctx); err != nil {
		return nil, nil, err
	}
	s.noteRun()
	started, reader, err := s.foreground(wanted.Code, wanted.Envs, wanted.limit())
	if err != nil {
		s.leave()
		s.turn <- struct{}{}
	}
	return started, reader, err
}

func (s *session) noteRun() {
	s.use()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRun = time.Now()
}

func refuseRun(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errDeleted):
		api.WriteError(w, http.StatusNotFound, codeSessionNotFound, err.Error())
	case errors.Is(err, errDead):
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
	default:
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
	}
}

// follow streams a run to its end. A client that leaves does not end it. Its output is not kept.
func follow(w http.ResponseWriter, r *http.Request, started *run, reader *output.Reader) {
	defer func() {
		reader.Detach()
		go func() {
			<-started.done
			started.log.Drop()
		}()
	}()
	events := stream.Open(w, r)
	if err := command.Stream(r.Context(), events, reader); err != nil {
		return
	}
	<-started.done
	if failure := started.ending.failure(); failure != nil {
		events.Fail(*failure)
		return
	}
	events.Complete(started.finished.Sub(started.started))
}

// checkBackground says why a session cannot run in the background.
func (s *session) checkBackground() error {
	first := s.settings.Overlays[0]
	switch {
	case !s.world.alive():
		return errDead
	case first.Mode == modeReadOnly:
		return errors.New("background: the first overlay is ro, so a run could leave nothing behind")
	case first.Mode == modeOverlay && !first.persists():
		return errors.New("background: the first overlay is not persistent, so what a run writes could vanish under it")
	}
	return nil
}

type backgroundBody struct {
	SessionID string    `json:"session_id"`
	RunID     string    `json:"run_id"`
	StartedAt time.Time `json:"started_at"`
}

func (s *session) runBackground(w http.ResponseWriter, wanted *runRequest) {
	s.noteRun()
	started, err := s.background(wanted.Code, wanted.Envs, wanted.limit())
	if err != nil {
		s.leave()
		refuseRun(w, err)
		return
	}
	s.remember(started)
	api.WriteJSON(w, http.StatusAccepted, backgroundBody{s.id, started.id, stamp(started.started)})
}

type runBody struct {
	SessionID string `json:"session_id"`
	RunID     string `json:"run_id"`
	Running   bool   `json:"running"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Error     string `json:"error,omitempty"`
	// MemoryLimitHit says that the kernel killed something for memory while this ran.
	MemoryLimitHit bool       `json:"memory_limit_hit,omitempty"`
	StartedAt      time.Time  `json:"started_at"`
	FinishedAt     *time.Time `json:"finished_at,omitempty"`
}

func (s *Service) status(w http.ResponseWriter, r *http.Request, found *session) {
	named := lookup(w, r, found)
	if named == nil {
		return
	}
	body := runBody{SessionID: found.id, RunID: named.id, Running: named.running(), StartedAt: stamp(named.started)}
	if !body.Running {
		finished := stamp(named.finished)
		body.ExitCode, body.FinishedAt = &named.ending.exit.Code, &finished
		body.Error, _ = named.ending.trouble()
		body.MemoryLimitHit = named.ending.exit.MemoryLimitHit
	}
	api.WriteJSON(w, http.StatusOK, body)
}

func lookup(w http.ResponseWriter, r *http.Request, found *session) *run {
	named := found.find(r.PathValue("run"))
	if named == nil {
		api.WriteError(w, http.StatusNotFound, api.CodeCommandNotFound,
			"the session has no background run with the id "+r.PathValue("run"))
	}
	return named
}

// logs answers with output from a cursor on, as much as one answer carries, without waiting for more.
func (s *Service) logs(w http.ResponseWriter, r *http.Request, found *session) {
	named := lookup(w, r, found)
	if named == nil {
		return
	}
	cursor, err := parseCursor(r.URL.Query().Get("cursor"))
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	base, start, data, err := named.read(cursor)
	if err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set(cursorHeader, strconv.FormatInt(start+int64(len(data)), 10))
	header.Set("Content-Length", strconv.Itoa(len(data)))
	if cursor < base {
		header.Set(truncatedHeader, strconv.FormatInt(base-cursor, 10))
	}
	w.WriteHeader(http.StatusOK)
	// An error means that the client left.
	_, _ = w.Write(data)
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

// read copies output. It does not end inside a character unless the run did.
func (r *run) read(cursor int64) (base, start int64, data []byte, err error) {
	running := r.running()
	base, end := r.log.Range()
	start = min(max(cursor, base), end)
	data = make([]byte, min(end-start, maxRead))
	for filled := 0; filled < len(data); {
		n, err := r.log.ReadAt(data[filled:], start+int64(filled))
		if err != nil {
			return base, start, nil, err
		}
		filled += n
	}
	if running || int64(len(data)) < end-start {
		tail := data[max(0, len(data)-utf8.UTFMax):]
		data = data[:len(data)-output.Unfinished(tail)]
	}
	return base, start, data, nil
}

type diffBody struct {
	Changes []change `json:"changes"`
}

// changes lists what the session's overlays hold; refused where there is none.
func (s *session) changes(w http.ResponseWriter) ([]change, bool) {
	if len(s.world.layers) == 0 {
		api.WriteError(w, http.StatusServiceUnavailable, api.CodeNotSupported,
			"the session has no overlay: it changes the sandbox's files directly, or not at all")
		return nil, false
	}
	all := []change{}
	for _, layer := range s.world.layers {
		found, err := layer.diff()
		if err != nil {
			api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, "diff: "+err.Error())
			return nil, false
		}
		all = append(all, found...)
	}
	return all, true
}

func (s *Service) diff(w http.ResponseWriter, r *http.Request, found *session) {
	if found.enter(r.Context()) != nil {
		refuseRun(w, errDeleted)
		return
	}
	defer func() { found.turn <- struct{}{} }()
	if all, ok := found.changes(w); ok {
		api.WriteJSON(w, http.StatusOK, diffBody{all})
	}
}

// commit makes the session's changes true in the sandbox and answers with them.
func (s *Service) commit(w http.ResponseWriter, r *http.Request, found *session) {
	if found.enter(r.Context()) != nil {
		refuseRun(w, errDeleted)
		return
	}
	defer func() { found.turn <- struct{}{} }()
	all, ok := found.changes(w)
	if !ok {
		return
	}
	for _, layer := range found.world.layers {
		own := slices.DeleteFunc(slices.Clone(all), func(c change) bool { return c.layer != layer })
		if err := layer.commit(own); err != nil {
			api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, "commit: "+err.Error())
			return
		}
	}
	api.WriteJSON(w, http.StatusOK, diffBody{all})
}
