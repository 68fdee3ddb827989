// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package metrics owns the figures of the sandbox: processors and memory as its cgroup counts and limits them, not
// those of the host, and the list of its processes. Where no cgroup is visible, /proc answers instead.
package metrics

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/api"
)

const (
	mebibyte = 1 << 20
	// A share of processor time needs two looks. They are at least this far apart...
	shortestSpan = 100 * time.Millisecond
	// ...and an earlier look is of use for this long.
	longestSpan   = 10 * time.Second
	watchInterval = time.Second
)

// Metrics is the answer of GET /metrics. Memory in use leaves out file cache that the kernel can drop at once, which
// mem_cached_mib counts.
type Metrics struct {
	CPUCount   float64 `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   float64 `json:"mem_total_mib"`
	MemUsed    float64 `json:"mem_used_mib"`
	MemCached  float64 `json:"mem_cached_mib"`
	Timestamp  int64   `json:"timestamp"`
}

// Service answers the metrics routes.
type Service struct {
	source source
	owner  func(uid uint32) string

	mu     sync.Mutex
	latest look
	share  float64
}

// look is the processor time used up to a moment.
type look struct {
	at   time.Time
	used time.Duration
}

// New makes the service. owner names a user; nil leaves numbers.
func New(owner func(uid uint32) string) *Service {
	if owner == nil {
		owner = func(uid uint32) string { return strconv.FormatUint(uint64(uid), 10) }
	}
	return &Service{source: findSource("/"), owner: owner}
}

// Routes registers the routes.
func (s *Service) Routes(router *api.Router) {
	router.Handle("GET /metrics", s.handleMetrics)
	router.Handle("GET /metrics/watch", s.handleWatch)
	router.Handle("GET /metrics/processes", s.handleProcesses)
}

func (s *Service) handleMetrics(w http.ResponseWriter, r *http.Request) {
	metrics, err := s.read(r.Context())
	if err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return
	}
	api.WriteJSON(w, http.StatusOK, metrics)
}

// handleWatch sends one line per second until the caller leaves. A failed look is a line too, and the next may succeed.
func (s *Service) handleWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		if !s.sendLine(w, r) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Service) sendLine(w http.ResponseWriter, r *http.Request) bool {
	var line any
	metrics, err := s.read(r.Context())
	if line = metrics; err != nil {
		line = map[string]string{"error": err.Error()}
	}
	text, err := json.Marshal(line)
	if err != nil {
		return false
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return false
	}
	return http.NewResponseController(w).Flush() == nil
}

func (s *Service) read(ctx context.Context) (Metrics, error) {
	count := s.source.cpuCount()
	share, err := s.usedShare(ctx, count)
	if err != nil {
		return Metrics{}, err
	}
	memory, err := s.source.memory()
	if err != nil {
		return Metrics{}, err
	}
	return Metrics{
		CPUCount: count, CPUUsedPct: share,
		MemTotal: mib(memory.total), MemUsed: mib(memory.used), MemCached: mib(memory.cached),
		Timestamp: time.Now().UnixMilli(),
	}, nil
}

func mib(bytes uint64) float64 { return float64(bytes) / mebibyte }

// usedShare is the used part of the allowed processor time, in percent, since the latest look. Without a fresh one it
// takes two looks a moment apart.
func (s *Service) usedShare(ctx context.Context, count float64) (float64, error) {
	now, err := s.look()
	if err != nil {
		return 0, err
	}
	earlier, share := s.remember(now, count)
	if !earlier.at.IsZero() {
		return share, nil
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(shortestSpan):
	}
	later, err := s.look()
	if err != nil {
		return 0, err
	}
	share = shareBetween(now, later, count)
	s.mu.Lock()
	s.share = share
	s.mu.Unlock()
	return share, nil
}

// remember compares with the latest look when that one is of a useful age, and keeps the new one unless the latest is
// too fresh to be replaced: many callers together must not shrink the span to nothing.
func (s *Service) remember(now look, count float64) (earlier look, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	earlier = s.latest
	age := now.at.Sub(earlier.at)
	switch {
	case earlier.at.IsZero() || age > longestSpan:
		s.latest = now
		return look{}, 0
	case age >= shortestSpan:
		s.latest = now
		s.share = shareBetween(earlier, now, count)
	}
	return earlier, s.share
}

func (s *Service) look() (look, error) {
	used, err := s.source.cpuUsed()
	return look{time.Now(), used}, err
}

func shareBetween(from, to look, count float64) float64 {
	allowed := to.at.Sub(from.at).Seconds() * count
	if allowed <= 0 {
		return 0
	}
	return min(100, max(0, (to.used-from.used).Seconds()/allowed*100))
}
