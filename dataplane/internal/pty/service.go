// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"errors"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// initialSize is what a terminal has until a client says otherwise.
var initialSize = size{cols: 80, rows: 24}

// Service keeps the terminals of a sandbox.
type Service struct {
	supervisor *process.Supervisor
	env        *environment.Environment
	store      *output.Store
	clients    sync.WaitGroup

	mu        sync.Mutex
	terminals map[string]*Terminal
}

// New makes the service of a sandbox.
func New(supervisor *process.Supervisor, env *environment.Environment, store *output.Store) *Service {
	return &Service{supervisor: supervisor, env: env, store: store, terminals: map[string]*Terminal{}}
}

// Routes registers the terminal routes.
func (s *Service) Routes(router *api.Router) {
	router.Handle("POST /pty", s.create)
	router.Handle("GET /pty/{id}", s.get)
	router.Handle("DELETE /pty/{id}", s.remove)
	router.Handle("GET /pty/{id}/ws", s.connect)
}

// Settle waits until viewers were told how their shells ended, at most for limit.
func (s *Service) Settle(limit time.Duration) {
	settled := make(chan struct{})
	go func() {
		s.clients.Wait()
		close(settled)
	}()
	select {
	case <-settled:
	case <-time.After(limit):
	}
}

type createRequest struct {
	Cwd     string `json:"cwd"`
	Command string `json:"command"`
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
	s.mu.Lock()
	s.terminals[made.ID] = made
	s.mu.Unlock()
	api.WriteJSON(w, http.StatusCreated, createAnswer{SessionID: made.ID})
}

func (s *Service) prepare(req createRequest) (*Terminal, error) {
	if strings.ContainsRune(req.Command, 0) || strings.ContainsRune(req.Cwd, 0) {
		return nil, errors.New("command and cwd must not contain a NUL byte")
	}
	identity, err := s.env.Identify(nil, nil)
	if err != nil {
		return nil, err
	}
	cwd := s.env.Cwd()
	if req.Cwd != "" {
		cwd = s.env.Expand(req.Cwd)
		if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
			return nil, errors.New("cwd: " + cwd + " is not a directory")
		}
	}
	return &Terminal{
		ID: api.NewUUID(), service: s, command: req.Command, cwd: cwd, identity: identity,
		history: output.NewLog(s.store, historyLimit), size: initialSize,
	}, nil
}

func (s *Service) lookup(w http.ResponseWriter, r *http.Request) *Terminal {
	id := r.PathValue("id")
	s.mu.Lock()
	found := s.terminals[id]
	s.mu.Unlock()
	if found == nil {
		api.WriteError(w, http.StatusNotFound, api.CodeContextNotFound, "there is no terminal with the id "+id)
	}
	return found
}

type getAnswer struct {
	SessionID    string `json:"session_id"`
	Running      bool   `json:"running"`
	OutputOffset int64  `json:"output_offset"`
}

func (s *Service) get(w http.ResponseWriter, r *http.Request) {
	t := s.lookup(w, r)
	if t == nil {
		return
	}
	t.mu.Lock()
	running := t.running()
	t.mu.Unlock()
	_, end := t.history.Range()
	api.WriteJSON(w, http.StatusOK, getAnswer{SessionID: t.ID, Running: running, OutputOffset: end})
}

func (s *Service) remove(w http.ResponseWriter, r *http.Request) {
	t := s.lookup(w, r)
	if t == nil {
		return
	}
	s.mu.Lock()
	delete(s.terminals, t.ID)
	s.mu.Unlock()
	go t.close()
	w.WriteHeader(http.StatusOK)
}

// connectQuery is what the address of a WebSocket says.
type connectQuery struct {
	mode     string
	since    int64
	takeover bool
	viewer   bool
}

func parseConnect(r *http.Request) (connectQuery, error) {
	values := r.URL.Query()
	query := connectQuery{mode: modeTerminal, takeover: values.Get("takeover") == "1", viewer: values.Get("view") == "1"}
	if values.Get("pty") == "0" {
		query.mode = modePipe
	}
	if text := values.Get("since"); text != "" {
		since, err := strconv.ParseInt(text, 10, 64)
		if err != nil || since < 0 {
			return query, errors.New("since is a byte offset, 0 or more")
		}
		query.since = since
	}
	return query, nil
}

func (s *Service) connect(w http.ResponseWriter, r *http.Request) {
	t := s.lookup(w, r)
	if t == nil {
		return
	}
	query, err := parseConnect(r)
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	if !query.viewer && !query.takeover && t.occupied() {
		api.WriteError(w, http.StatusConflict, codeConnected, "another client is attached: use takeover=1, or view=1 to look on")
		return
	}
	c := &client{terminal: t, viewer: query.viewer, gone: make(chan struct{})}
	c.socket, err = websocket.Accept(w, r, c.acceptOptions())
	if err != nil {
		// Accept has answered already.
		log.Printf("event=websocket_refused error=%q", err)
		return
	}
	s.clients.Add(1)
	defer s.clients.Done()
	c.converse(query)
}

func (t *Terminal) occupied() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owner != nil
}

// enter makes c the owner. With takeover, whoever was it is told, and gets a moment to leave.
func (t *Terminal) enter(c *client, takeover bool) bool {
	deadline := time.After(takeoverWait)
	for {
		t.mu.Lock()
		old := t.owner
		if old == nil {
			t.owner = c
		}
		t.mu.Unlock()
		if old == nil {
			return true
		}
		if !takeover {
			return false
		}
		go old.hangUp(statusTakenOver, "TAKEN_OVER")
		select {
		case <-old.gone:
			t.leave(old)
		case <-deadline:
			return false
		}
	}
}

func (t *Terminal) leave(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owner == c {
		t.owner = nil
	}
}
