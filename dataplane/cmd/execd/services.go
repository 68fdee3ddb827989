// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"net/http"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/command"
	"casulo.dev/dataplane/internal/interpreter"
	"casulo.dev/dataplane/internal/isolated"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/pty"
	"casulo.dev/dataplane/internal/session"
	"casulo.dev/dataplane/internal/version"
)

// Where output that does not fit into memory goes, and how much of it.
var spillDirs = []string{"/var/tmp", "/tmp", "/"}

const spillLimit = 512 << 20

// services are the parts of the API, registered on one router.
type services struct {
	router    *api.Router
	activity  *api.Activity
	terminals *pty.Service
}

func newServices(d *daemon, listen []string) *services {
	s := &services{router: api.NewRouter(d.document.AccessToken)}
	s.router.Open("GET /ping", handlePing)
	s.router.Open("GET /version", handleVersion)
	s.router.Handle("POST /v1/internal/stop", d.handleStop)
	s.router.Handle("POST /v1/internal/suspend", d.handleSuspend)
	store := output.NewStore(spillDirs, spillLimit)
	commands := command.New(d.supervisor, d.env, store)
	sessions := session.New(d.supervisor, d.env, store)
	s.terminals = pty.New(d.supervisor, d.env, store)
	commands.AlsoInterrupts(sessions.Interrupt)
	s.activity = api.NewActivity()
	s.router.Handle("GET "+api.ActivityPath, s.activity.Handler(commands.Running))
	commands.Routes(s.router)
	sessions.Routes(s.router)
	s.terminals.Routes(s.router)
	interpreter.New(d.supervisor, d.env).Routes(s.router)
	fileService := addFileServices(s.router, d, listen)
	worlds := isolated.New(d.supervisor, d.env, store, d.isolatedHome)
	commands.AlsoInterrupts(worlds.Interrupt)
	worlds.Routes(s.router, fileService)
	return s
}

func handlePing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

func handleVersion(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, http.StatusOK, map[string]any{
		"version": version.Version, "features": version.Features,
	})
}
