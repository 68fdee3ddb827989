// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/stream"
)

// Routes registers the routes of code and contexts.
func (s *Service) Routes(router *api.Router) {
	router.Handle("POST /code", s.run)
	router.Handle("DELETE /code", s.interrupt)
	router.Handle("POST /code/context", s.createContext)
	router.Handle("GET /code/contexts", s.listContexts)
	router.Handle("DELETE /code/contexts", s.removeLanguage)
	router.Handle("GET /code/contexts/{id}", s.getContext)
	router.Handle("DELETE /code/contexts/{id}", s.removeContext)
}

type runRequest struct {
	Code    string `json:"code"`
	Context struct {
		ID       string `json:"id"`
		Language string `json:"language"`
	} `json:"context"`
	// TimeoutMS ends the cell after so many milliseconds.
	TimeoutMS int64 `json:"timeout"`
	// FigureFormats are those in which pictures of plots are wanted: png, svg, or both.
	FigureFormats []string `json:"figure_formats"`
}

func (req *runRequest) cell() (*cell, error) {
	if strings.TrimSpace(req.Code) == "" {
		return nil, errors.New("code is empty")
	}
	if req.TimeoutMS < 0 || req.TimeoutMS > math.MaxInt64/int64(time.Millisecond) {
		return nil, errors.New("timeout is in milliseconds and not negative")
	}
	c := &cell{
		code: req.Code, timeout: time.Duration(req.TimeoutMS) * time.Millisecond,
		stops: make(chan string, 1), done: make(chan struct{}), events: newQueue(),
	}
	for _, format := range req.FigureFormats {
		if format != "png" && format != "svg" {
			return nil, errors.New("figure_formats knows png and svg, not " + format)
		}
	}
	if len(req.FigureFormats) > 0 {
		c.options = append(c.options, "figures="+strings.Join(req.FigureFormats, ","))
	}
	return c, nil
}

func (s *Service) run(w http.ResponseWriter, r *http.Request) {
	var req runRequest
	if !api.ReadJSON(w, r, &req) {
		return
	}
	c, err := req.cell()
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, err.Error())
		return
	}
	chosen, err := s.choose(req.Context.ID, req.Context.Language)
	if err != nil {
		refuse(w, err)
		return
	}
	fresh, err := chosen.begin(c)
	if err != nil {
		refuse(w, err)
		return
	}
	defer c.events.abandon()
	out := stream.OpenCell(w, r)
	out.Begin(chosen.ID, fresh)
	forward(r, c, out)
}

// gathering is how long small pieces of output may gather once some were sent.
const gathering = 2 * time.Millisecond

// forward sends events as they come, and returns when the cell ended or the client left.
func forward(r *http.Request, c *cell, out *stream.Cell) {
	beat := time.NewTicker(stream.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-c.events.ready:
			if done := send(c.events, out); done {
				return
			}
			beat.Reset(stream.Heartbeat)
			select {
			case <-c.events.urgent:
			case <-time.After(gathering):
			}
		case <-beat.C:
			out.Ping()
		case <-r.Context().Done():
			return
		}
	}
}

// send passes on what is at hand. True means that there is nothing more to do.
func send(events *queue, out *stream.Cell) bool {
	items, ended := events.take()
	for _, each := range items {
		if each.event != nil {
			each.event(out)
		} else {
			out.Output(each.stream, each.data)
		}
	}
	return ended || out.Flush() != nil
}

// refuse answers before the first event. The code is the official one for everything that the
// interpreter cannot do; the status tells more.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errUnknown), errors.Is(err, errRemoved):
		status = http.StatusNotFound
	case errors.Is(err, errBusy):
		status = http.StatusConflict
	}
	api.WriteError(w, status, api.CodeRuntime, err.Error())
}

func (s *Service) interrupt(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		api.WriteError(w, http.StatusBadRequest, api.CodeMissingQuery, "the query needs id")
		return
	}
	if found := s.lookup(id); found != nil {
		found.interrupt(r.Context())
		w.WriteHeader(http.StatusOK)
		return
	}
	unknown(w, id)
}

type createRequest struct {
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// contextBody describes a context; busy is ours.
type contextBody struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Busy     bool   `json:"busy"`
}

func (x *Context) body() contextBody {
	return contextBody{ID: x.ID, Language: x.language.name, Busy: x.busy()}
}

func (s *Service) createContext(w http.ResponseWriter, r *http.Request) {
	var req createRequest
	if !api.ReadJSON(w, r, &req) {
		return
	}
	if req.Language == "" || strings.ContainsRune(req.Cwd, 0) {
		api.WriteError(w, http.StatusBadRequest, api.CodeInvalidRequest, "a context needs a language, and a cwd without NUL bytes")
		return
	}
	made, err := s.create(req.Language, req.Cwd)
	if err != nil {
		refuse(w, err)
		return
	}
	api.WriteJSON(w, http.StatusOK, made.body())
}

func (s *Service) listContexts(w http.ResponseWriter, r *http.Request) {
	bodies := []contextBody{}
	for _, each := range s.list(r.URL.Query().Get("language")) {
		bodies = append(bodies, each.body())
	}
	api.WriteJSON(w, http.StatusOK, bodies)
}

func (s *Service) getContext(w http.ResponseWriter, r *http.Request) {
	if found := s.lookup(r.PathValue("id")); found != nil {
		api.WriteJSON(w, http.StatusOK, found.body())
		return
	}
	unknown(w, r.PathValue("id"))
}

func (s *Service) removeContext(w http.ResponseWriter, r *http.Request) {
	found := s.lookup(r.PathValue("id"))
	if found == nil {
		unknown(w, r.PathValue("id"))
		return
	}
	s.drop([]*Context{found})
	w.WriteHeader(http.StatusOK)
}

func (s *Service) removeLanguage(w http.ResponseWriter, r *http.Request) {
	language := r.URL.Query().Get("language")
	if language == "" {
		api.WriteError(w, http.StatusBadRequest, api.CodeMissingQuery, "the query needs language")
		return
	}
	s.drop(s.list(language))
	w.WriteHeader(http.StatusOK)
}

func unknown(w http.ResponseWriter, id string) {
	api.WriteError(w, http.StatusNotFound, api.CodeContextNotFound, "there is no context with the id "+id)
}
