// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"net/http"
	"sync/atomic"
	"time"
)

// ActivityPath is where the server asks whether a sandbox is used; asking is no use of it.
const ActivityPath = "/v1/internal/activity"

// Activity knows when somebody last used the daemon, and whether somebody does now.
type Activity struct {
	began    time.Time
	requests atomic.Int64
	last     atomic.Int64 // nanoseconds after began
}

// NewActivity begins to count.
func NewActivity() *Activity { return &Activity{began: time.Now()} }

// Track counts the requests that next serves. A stream or an open WebSocket is one for as long as it lasts.
func (a *Activity) Track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case ActivityPath, "/ping", "/version":
			next.ServeHTTP(w, r)
			return
		}
		a.requests.Add(1)
		defer func() {
			a.last.Store(int64(time.Since(a.began)))
			a.requests.Add(-1)
		}()
		next.ServeHTTP(w, r)
	})
}

// Handler answers with what is known, and the number of commands that run.
func (a *Activity) Handler(commands func() int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		requests := a.requests.Load()
		idle := time.Since(a.began) - time.Duration(a.last.Load())
		WriteJSON(w, http.StatusOK, map[string]int64{
			"idle_ms": idle.Milliseconds(), "requests": requests, "commands": int64(commands()),
		})
	}
}
