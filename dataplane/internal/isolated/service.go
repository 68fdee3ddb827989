// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package isolated owns isolated sessions: shells that have their own processes and their own view of
// the sandbox's files, in which they write over what they see without changing it, or see only a part.
//
// A session is a set of namespaces inside the sandbox's own. Everything in it is read-only but what the
// request names; the profile strict gives it temporary directories of its own and keeps secrets of the
// environment back. The daemon builds the view on a thread that is thrown away (build.go), the first
// process of a session only waits and collects orphans (world.go), and the shell joins it (shell.go).
//
// Nothing here is needed to hold the sandbox: a session can do less than the sandbox's other code, and
// that code can do no more than in any other sandbox (privileges.go).
package isolated

import (
	"errors"
	"net/http"
	"sync"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/files"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

const codeSessionNotFound = "SESSION_NOT_FOUND"

// Service keeps the isolated sessions of a sandbox.
type Service struct {
	supervisor *process.Supervisor
	env        *environment.Environment
	store      *output.Store
	home       *Home
	probed     func() support

	mu       sync.Mutex
	sessions map[string]*session
}

// New makes the service. Home is what Confine returned: nil where there are no isolated sessions.
func New(supervisor *process.Supervisor, env *environment.Environment, store *output.Store, home *Home) *Service {
	s := &Service{supervisor: supervisor, env: env, store: store, home: home, sessions: map[string]*session{}}
	s.probed = sync.OnceValue(s.probe)
	return s
}

// Routes registers the isolated routes. Files of a session are served by the files service in its view.
func (s *Service) Routes(router *api.Router, fileService *files.Service) {
	const one = "/v1/isolated/session/{id}"
	router.Handle("GET /v1/isolated/capabilities", s.capabilities)
	router.Handle("POST /v1/isolated/session", s.guarded(s.create))
	router.Handle("GET /v1/isolated/sessions", s.guarded(s.list))
	router.Handle("GET "+one, s.guarded(s.withSession(s.show)))
	router.Handle("DELETE "+one, s.guarded(s.delete))
	router.Handle("POST "+one+"/run", s.guarded(s.withSession(s.run)))
	router.Handle("GET "+one+"/runs/{run}", s.guarded(s.withSession(s.status)))
	router.Handle("GET "+one+"/runs/{run}/logs", s.guarded(s.withSession(s.logs)))
	router.Handle("GET "+one+"/diff", s.guarded(s.withSession(s.diff)))
	router.Handle("POST "+one+"/commit", s.guarded(s.withSession(s.commit)))
	fileService.RoutesBelow(router, one, s.viewOf)
}

// guarded answers for a sandbox without isolated sessions.
func (s *Service) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if reason := s.support().reason; reason != "" {
			api.WriteError(w, http.StatusServiceUnavailable, api.CodeUnavailable, "isolated sessions are not available: "+reason)
			return
		}
		next(w, r)
	}
}

func (s *Service) withSession(next func(http.ResponseWriter, *http.Request, *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		found := s.find(id)
		if found == nil {
			api.WriteError(w, http.StatusNotFound, codeSessionNotFound, "there is no isolated session with the id "+id)
			return
		}
		next(w, r, found)
	}
}

func (s *Service) find(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// viewOf is the view of a file request. The session counts as used when the request arrives.
func (s *Service) viewOf(r *http.Request) (files.View, error) {
	if reason := s.support().reason; reason != "" {
		return files.View{}, files.Refuse(http.StatusServiceUnavailable, api.CodeUnavailable,
			"isolated sessions are not available: "+reason)
	}
	found := s.find(r.PathValue("id"))
	if found == nil {
		return files.View{}, files.Refuse(http.StatusNotFound, codeSessionNotFound,
			"there is no isolated session with the id "+r.PathValue("id"))
	}
	found.use()
	found.leave()
	return found.view(), nil
}

func (s *Service) create(w http.ResponseWriter, r *http.Request) {
	var wanted settings
	if !api.ReadJSON(w, r, &wanted) {
		return
	}
	if err := wanted.settle(); err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	if reason := s.unsupported(&wanted); reason != "" {
		api.WriteError(w, http.StatusServiceUnavailable, api.CodeNotSupported, reason)
		return
	}
	made, err := s.open(wanted)
	var refused *refusal
	if errors.As(err, &refused) {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	if err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return
	}
	s.mu.Lock()
	s.sessions[made.id] = made
	s.mu.Unlock()
	made.watchIdleness()
	api.WriteJSON(w, http.StatusCreated, made.describe())
}

// unsupported names what a request asks for that no session here can have.
func (s *Service) unsupported(wanted *settings) string {
	if wanted.UIDMode == uidModeUserns {
		return "uid_mode userns: this sandbox is closed to further user namespaces; use setpriv"
	}
	reason := s.support().overlayReason
	for _, overlay := range wanted.Overlays {
		if overlay.Mode == modeOverlay && reason != "" {
			return "overlays: mode overlay is not available: " + reason
		}
	}
	return ""
}

// remove ends a session. False means that there is none.
func (s *Service) remove(id string) bool {
	s.mu.Lock()
	found := s.sessions[id]
	delete(s.sessions, id)
	s.mu.Unlock()
	if found == nil {
		return false
	}
	found.close()
	return true
}

func (s *Service) delete(w http.ResponseWriter, r *http.Request) {
	if !s.remove(r.PathValue("id")) {
		api.WriteError(w, http.StatusNotFound, codeSessionNotFound,
			"there is no isolated session with the id "+r.PathValue("id"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
