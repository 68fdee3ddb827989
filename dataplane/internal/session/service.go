// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/command"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/stream"
)

// Service keeps the sessions of a sandbox.
type Service struct {
	supervisor *process.Supervisor
	env        *environment.Environment
	store      *output.Store

	mu       sync.Mutex
	sessions map[string]*Session
}

// New makes the service of a sandbox.
func New(supervisor *process.Supervisor, env *environment.Environment, store *output.Store) *Service {
	return &Service{supervisor: supervisor, env: env, store: store, sessions: map[string]*Session{}}
}

// Routes registers the session routes.
func (s *Service) Routes(router *api.Router) {
	router.Handle("POST /session", s.create)
	router.Handle("POST /session/{id}/run", s.run)
	router.Handle("DELETE /session/{id}", s.remove)
}

// Interrupt ends what runs in a session, whose id also names its executions.
func (s *Service) Interrupt(id string) bool {
	found := s.find(id)
	return found != nil && found.stop(command.ReasonInterrupted)
}

func (s *Service) find(id string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

type createRequest struct {
	Cwd string `json:"cwd"`
}

type createAnswer struct {
	SessionID string `json:"session_id"`
}

func (s *Service) create(w http.ResponseWriter, r *http.Request) {
	var req createRequest
	if !api.ReadOptionalJSON(w, r, &req) {
		return
	}
	made, err := s.prepare(req)
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	if err := made.open(); err != nil {
		status, code := http.StatusInternalServerError, api.CodeRuntime
		if errors.Is(err, errNoShell) {
			status, code = http.StatusBadRequest, command.CodeNoShell
		}
		api.WriteError(w, status, code, err.Error())
		return
	}
	s.mu.Lock()
	s.sessions[made.ID] = made
	s.mu.Unlock()
	api.WriteJSON(w, http.StatusOK, createAnswer{SessionID: made.ID})
}

// prepare takes the snapshot of the environment and makes the directory.
func (s *Service) prepare(req createRequest) (*Session, error) {
	identity, err := s.env.Identify(nil, nil)
	if err != nil {
		return nil, err
	}
	made := &Session{
		ID: api.NewUUID(), service: s, variables: s.env.Compose(nil), identity: identity, cwd: s.env.Cwd(),
		turn: make(chan struct{}, 1), gone: make(chan struct{}), stops: make(chan string, 1),
	}
	if req.Cwd == "" {
		return made, nil
	}
	made.cwd = made.variables.Expand(req.Cwd, s.env.Cwd())
	if err := os.MkdirAll(made.cwd, 0o755); err != nil {
		return nil, fmt.Errorf("cwd: %w", err)
	}
	return made, nil
}

type runRequest struct {
	Command   string            `json:"command"`
	Cwd       string            `json:"cwd"`
	TimeoutMS *int64            `json:"timeout"`
	Envs      map[string]string `json:"envs"`
}

func (req *runRequest) check() error {
	switch {
	case req.Command == "":
		return errors.New("command is empty")
	case strings.ContainsRune(req.Command, 0):
		return errors.New("command contains a NUL byte")
	case strings.ContainsRune(req.Cwd, 0):
		return errors.New("cwd contains a NUL byte")
	case req.TimeoutMS != nil && *req.TimeoutMS < 0:
		return errors.New("timeout is in milliseconds and not negative")
	case len(req.Envs) > 0:
		return errors.New("a run takes no envs: export them in the session")
	}
	return nil
}

func (req *runRequest) timeout() time.Duration {
	if req.TimeoutMS == nil || *req.TimeoutMS == 0 {
		return defaultTimeout
	}
	return time.Duration(min(*req.TimeoutMS, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func (s *Service) run(w http.ResponseWriter, r *http.Request) {
	var req runRequest
	if !api.ReadJSON(w, r, &req) {
		return
	}
	found := s.find(r.PathValue("id"))
	if found == nil {
		unknown(w, r)
		return
	}
	if err := req.check(); err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	started, err := found.enter(r.Context(), &req)
	if err != nil {
		refuse(w, err)
		return
	}
	follow(w, r, found.ID, started)
}

// enter waits for the session's turn and starts the script.
func (s *Session) enter(ctx context.Context, req *runRequest) (*run, error) {
	select {
	case <-s.turn:
	case <-s.gone:
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		s.pass()
		return nil, errClosed
	}
	started, err := s.begin(req.Command, req.Cwd, req.timeout())
	if err != nil {
		s.setRunning(false)
		s.pass()
	}
	return started, err
}

func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, errClosed) {
		api.WriteError(w, http.StatusNotFound, api.CodeContextNotFound, err.Error())
		return
	}
	api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
}

// follow streams a run to its end. Its output is not kept afterwards.
func follow(w http.ResponseWriter, r *http.Request, id string, started *run) {
	defer func() {
		started.reader.Detach()
		go func() {
			<-started.done
			started.log.Drop()
		}()
	}()
	events := stream.Open(w, r)
	events.Init(id)
	if err := command.Stream(r.Context(), events, started.reader); err != nil {
		return
	}
	<-started.done
	if started.reset {
		events.MarkReset()
	}
	if started.outcome.Reason() != "" {
		events.Fail(started.outcome.Failure())
		return
	}
	events.Complete(started.took)
}

func (s *Service) remove(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	found := s.sessions[r.PathValue("id")]
	delete(s.sessions, r.PathValue("id"))
	s.mu.Unlock()
	if found == nil {
		unknown(w, r)
		return
	}
	go found.close()
	w.WriteHeader(http.StatusOK)
}

func unknown(w http.ResponseWriter, r *http.Request) {
	api.WriteError(w, http.StatusNotFound, api.CodeContextNotFound, "there is no session with the id "+r.PathValue("id"))
}
