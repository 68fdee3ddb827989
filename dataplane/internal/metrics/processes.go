// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package metrics

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/api"
)

// ticksPerSecond is the unit of times in /proc; the kernel fixes it for user space on every architecture we build for.
const ticksPerSecond = 100

// Process is one entry of GET /metrics/processes, our own addition.
type Process struct {
	PID        int      `json:"pid"`
	Parent     int      `json:"ppid"`
	Name       string   `json:"name"`
	Command    []string `json:"command"`
	User       string   `json:"user"`
	State      string   `json:"state"`
	Threads    int      `json:"threads"`
	MemoryMiB  float64  `json:"rss_mib"`
	CPUSeconds float64  `json:"cpu_seconds"`
	StartedAt  int64    `json:"started_at"`
}

func (s *Service) handleProcesses(w http.ResponseWriter, _ *http.Request) {
	processes, err := s.processes()
	if err != nil {
		api.WriteError(w, http.StatusInternalServerError, api.CodeRuntime, err.Error())
		return
	}
	api.WriteJSON(w, http.StatusOK, map[string]any{"processes": processes, "timestamp": time.Now().UnixMilli()})
}

// processes lists what /proc shows, in order of process ids. Those that end meanwhile are left out.
func (s *Service) processes() ([]Process, error) {
	proc := filepath.Join(s.source.root, "proc")
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	booted := time.Now().Add(-uptime(proc))
	list := []Process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if process, ok := s.process(filepath.Join(proc, entry.Name()), pid, booted); ok {
			list = append(list, process)
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list, nil
}

func uptime(proc string) time.Duration {
	first, _, _ := strings.Cut(readText(filepath.Join(proc, "uptime")), " ")
	return time.Duration(parseNumber(first) * float64(time.Second))
}

func (s *Service) process(dir string, pid int, booted time.Time) (Process, bool) {
	stat := readText(filepath.Join(dir, "stat"))
	// The name is in parentheses and may hold anything, parentheses included: only the last one closes it.
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Process{}, false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 22 {
		return Process{}, false
	}
	// Numbered as in proc(5), where the state is field 3.
	field := func(n int) float64 { return parseNumber(fields[n-3]) }
	started := time.Duration(field(22) * float64(time.Second) / ticksPerSecond)
	return Process{
		PID: pid, Parent: int(field(4)), Name: stat[open+1 : end], Command: arguments(dir), User: s.ownerOf(dir),
		State: fields[0], Threads: int(field(20)),
		MemoryMiB:  field(24) * float64(os.Getpagesize()) / mebibyte,
		CPUSeconds: (field(14) + field(15)) / ticksPerSecond,
		StartedAt:  booted.Add(started).UnixMilli(),
	}, true
}

// arguments is empty for kernel threads and zombies.
func arguments(dir string) []string {
	text := strings.TrimSuffix(readText(filepath.Join(dir, "cmdline")), "\x00")
	if text == "" {
		return []string{}
	}
	return strings.Split(text, "\x00")
}

func (s *Service) ownerOf(dir string) string {
	st, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	raw, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return s.owner(raw.Uid)
}
