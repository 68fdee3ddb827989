// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"context"
	"errors"
	"net/http"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/stream"
)

// CodeNoShell is the refusal of command text where only argv can run.
const CodeNoShell = "SHELL_NOT_FOUND"

// Routes registers the command routes.
func (s *Service) Routes(router *api.Router) {
	router.Handle("POST /command", s.run)
	router.Handle("DELETE /command", s.interrupt)
	// "/command/status/{id}" and "/command/{id}/logs" overlap for a mux: one pattern takes both.
	router.Handle("GET /command/{first}/{second}", s.read)
	router.Handle("POST /command/{id}/stdin", s.feed)
	router.Handle("DELETE /command/{id}/stdin", s.closeStdin)
}

func (s *Service) run(w http.ResponseWriter, r *http.Request) {
	var req request
	if !api.ReadJSON(w, r, &req) {
		return
	}
	p, err := req.check(s.env)
	if err != nil {
		code := api.CodeInvalidRequest
		if errors.Is(err, errNoShell) {
			code = CodeNoShell
		}
		api.WriteError(w, http.StatusBadRequest, code, err.Error())
		return
	}
	c, reader := s.begin(p)
	if p.background {
		announce(w, r, c)
		return
	}
	defer reader.Detach()
	follow(w, r, c, reader)
}

// announce answers for a background command: it runs, or it could not start.
func announce(w http.ResponseWriter, r *http.Request, c *Command) {
	events := stream.Open(w, r)
	events.Init(c.ID)
	if outcome := c.startFailure(); outcome != nil {
		events.Fail(outcome.Failure())
		return
	}
	events.Complete(0)
}

// follow streams a foreground command to its end.
func follow(w http.ResponseWriter, r *http.Request, c *Command, reader *output.Reader) {
	events := stream.Open(w, r)
	events.Init(c.ID)
	if err := Stream(r.Context(), events, reader); err != nil {
		return
	}
	<-c.ended()
	if c.outcome.Reason() != "" {
		events.Fail(c.outcome.Failure())
		return
	}
	events.Complete(c.finished.Sub(c.started))
}

// Stream follows a reader to its end. An error means that the client left. Lost output cuts the
// connection instead, so that the client cannot take the stream for complete.
func Stream(ctx context.Context, events *stream.Stream, reader *output.Reader) error {
	err := events.Follow(ctx, reader)
	if errors.Is(err, output.ErrDropped) {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (s *Service) interrupt(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		api.WriteError(w, http.StatusBadRequest, api.CodeMissingQuery, "the query needs id")
		return
	}
	if c := s.registry.find(id); c != nil && c.Stop(ReasonInterrupted) == nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	for _, interrupt := range s.elsewhere {
		if interrupt(id) {
			w.WriteHeader(http.StatusOK)
			return
		}
	}
	api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, "no command with the id "+id+" is running")
}

// statusBody is what status says. Members without a value are left out.
type statusBody struct {
	ID       string `json:"id"`
	Content  string `json:"content"`
	Running  bool   `json:"running"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// MemoryLimitHit says that the kernel killed something for memory while this ran.
	MemoryLimitHit bool       `json:"memory_limit_hit,omitempty"`
	StartedAt      time.Time  `json:"started_at"`
	FinishedAt     *time.Time `json:"finished_at,omitempty"`
	OutputBytes    int64      `json:"output_bytes"`
	// TruncatedBytes counts the oldest bytes of output that are no longer kept.
	TruncatedBytes int64 `json:"truncated_bytes,omitempty"`
}

func (s *Service) read(w http.ResponseWriter, r *http.Request) {
	first, second := r.PathValue("first"), r.PathValue("second")
	switch {
	case first == "status":
		s.status(w, second)
	case second == "logs":
		s.logs(w, r, first)
	default:
		api.WriteError(w, http.StatusNotFound, api.CodeNotFound, "no such route: GET "+r.URL.Path)
	}
}

func (s *Service) status(w http.ResponseWriter, id string) {
	c := s.lookup(w, id)
	if c == nil {
		return
	}
	body, err := c.status()
	if err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return
	}
	api.WriteJSON(w, http.StatusOK, body)
}

// lookup finds a command and writes the refusal when there is none.
func (s *Service) lookup(w http.ResponseWriter, id string) *Command {
	c := s.registry.find(id)
	if c == nil {
		api.WriteError(w, http.StatusNotFound, api.CodeInvalidRequest, "there is no command with the id "+id)
	}
	return c
}

// fedBody says how much of the input was taken.
type fedBody struct {
	Written int64 `json:"written"`
}

func (s *Service) feed(w http.ResponseWriter, r *http.Request) {
	c := s.lookup(w, r.PathValue("id"))
	if c == nil {
		return
	}
	written, err := c.Feed(r.Body)
	if err != nil {
		api.WriteError(w, http.StatusConflict, codeStdinClosed, "the command does not take input any more: "+err.Error())
		return
	}
	if r.URL.Query().Get("close") == "true" && !closed(w, c) {
		return
	}
	api.WriteJSON(w, http.StatusOK, fedBody{Written: written})
}

func (s *Service) closeStdin(w http.ResponseWriter, r *http.Request) {
	if c := s.lookup(w, r.PathValue("id")); c != nil && closed(w, c) {
		w.WriteHeader(http.StatusOK)
	}
}

// codeStdinClosed says that a command has no input, or not any more.
const codeStdinClosed = "STDIN_CLOSED"

func closed(w http.ResponseWriter, c *Command) bool {
	if err := c.CloseStdin(); err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return false
	}
	return true
}
