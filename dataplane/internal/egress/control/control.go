// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package control is how the server tells this process what holds: HTTP with JSON on a unix socket
// that only its owner can open.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/resolve"
	"casulo.dev/dataplane/internal/egress/sandbox"
	"casulo.dev/dataplane/internal/version"
)

const longestBody = 64 << 20

// API serves one process.
type API struct {
	registry *sandbox.Registry
	resolver *resolve.Resolver
	audit    *audit.Log
	end      func(destroy bool)
	health   func() Health
}

// Health is what the process says of itself.
type Health struct {
	Version      string `json:"version"`
	PID          int    `json:"pid"`
	Config       string `json:"config"` // the configuration's digest
	Sandboxes    int    `json:"sandboxes"`
	Rebuilt      int    `json:"rebuilt"` // how often the table had to be written anew
	AuditFailed  int    `json:"auditFailed"`
	FilterFailed int    `json:"filterFailed"`
}

// New serves a registry; end is called when the server wants this process gone.
func New(registry *sandbox.Registry, resolver *resolve.Resolver, log *audit.Log, health func() Health, end func(destroy bool)) *API {
	return &API{registry, resolver, log, end, health}
}

// Listen opens the socket, replacing one that a process before this one left.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

// Handler is the routes.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", a.getHealth)
	mux.HandleFunc("PUT /sandboxes", a.sync)
	mux.HandleFunc("PUT /sandboxes/{id}", a.put)
	mux.HandleFunc("GET /sandboxes/{id}", a.get)
	mux.HandleFunc("DELETE /sandboxes/{id}", a.remove)
	mux.HandleFunc("PUT /sandboxes/{id}/vault", a.putVault)
	mux.HandleFunc("DELETE /sandboxes/{id}/vault", a.removeVault)
	mux.HandleFunc("GET /sandboxes/{id}/seen", a.seen)
	mux.HandleFunc("POST /sandboxes/{id}/test", a.test)
	mux.HandleFunc("GET /log", a.log)
	mux.HandleFunc("POST /end", a.stop)
	return mux
}

func (a *API) getHealth(w http.ResponseWriter, _ *http.Request) {
	told := a.health()
	told.Version, told.PID = version.Version, os.Getpid()
	told.AuditFailed = a.audit.Failed()
	for _, each := range a.registry.All() {
		told.Sandboxes++
		told.FilterFailed += each.State().Failures
	}
	answer(w, told)
}

func (a *API) sync(w http.ResponseWriter, r *http.Request) {
	var all []sandbox.Definition
	if read(w, r, &all) {
		finish(w, a.registry.Sync(r.URL.Query().Get("baseline"), all))
	}
}

func (a *API) put(w http.ResponseWriter, r *http.Request) {
	var one sandbox.Definition
	if read(w, r, &one) {
		one.ID = r.PathValue("id")
		finish(w, a.registry.Put(one))
	}
}

func (a *API) find(w http.ResponseWriter, r *http.Request) *sandbox.Sandbox {
	found := a.registry.Get(r.PathValue("id"))
	if found == nil {
		http.Error(w, "no such sandbox", http.StatusNotFound)
	}
	return found
}

func (a *API) get(w http.ResponseWriter, r *http.Request) {
	if found := a.find(w, r); found != nil {
		answer(w, found.State())
	}
}

func (a *API) seen(w http.ResponseWriter, r *http.Request) {
	if found := a.find(w, r); found != nil {
		answer(w, append([]sandbox.Seen{}, found.State().Destinations...))
	}
}

func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	finish(w, a.registry.Delete(r.PathValue("id")))
}

func (a *API) stop(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusNoContent)
	a.end(r.URL.Query().Get("destroy") == "true")
}

func (a *API) log(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	if r.URL.Query().Get("follow") != "true" {
		for _, record := range a.audit.Recent(r.URL.Query().Get("sandbox")) {
			if out.Encode(record) != nil {
				return
			}
		}
		return
	}
	recent, next, stop := a.audit.Follow(r.URL.Query().Get("sandbox"))
	defer stop()
	for _, record := range recent {
		if out.Encode(record) != nil {
			return
		}
	}
	follow(w, r, out, next)
}

func follow(w http.ResponseWriter, r *http.Request, out *json.Encoder, next <-chan audit.Record) {
	flusher := http.NewResponseController(w)
	for {
		if flusher.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case record := <-next:
			if out.Encode(record) != nil {
				return
			}
		}
	}
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("the body is not understood: %v", err), http.StatusBadRequest)
	}
	return err == nil
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func finish(w http.ResponseWriter, err error) {
	var invalid *sandbox.Invalid
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, sandbox.ErrUnknown):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.As(err, &invalid):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
