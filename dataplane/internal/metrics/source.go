// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package metrics

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/plain"
)

// source knows which files hold the figures. Each of the three resources is found by itself, since a host can have
// them in hierarchies of different versions; an empty directory means that /proc answers.
type source struct {
	root                  string
	unified               string // v2 directory
	memoryV1, cpu, cpuUse string // v1 directories
}

// memory in bytes; used leaves out what is cached.
type memory struct{ total, used, cached uint64 }

// findSource looks for the cgroup of this process below root, which is "/" outside tests.
func findSource(root string) source {
	s := source{root: root}
	base := filepath.Join(root, "sys/fs/cgroup")
	own := ownPaths(filepath.Join(root, "proc/self/cgroup"))
	s.unified = firstWith("memory.current", base, filepath.Join(base, own[""]), filepath.Join(base, "unified", own[""]))
	if s.unified == "" {
		s.unified = firstWith("cpu.max", base, filepath.Join(base, own[""]))
	}
	s.memoryV1 = hierarchy(base, "memory", own, "memory.usage_in_bytes")
	s.cpu = hierarchy(base, "cpu", own, "cpu.cfs_quota_us")
	s.cpuUse = hierarchy(base, "cpuacct", own, "cpuacct.usage")
	return s
}

// hierarchy finds the v1 directory of a controller: our own group when the whole tree is mounted, else the top, which
// is our own group seen from inside.
func hierarchy(base, controller string, own map[string]string, file string) string {
	for _, mount := range []string{controller, "cpu,cpuacct", "cpuacct,cpu"} {
		dir := filepath.Join(base, mount)
		if found := firstWith(file, filepath.Join(dir, own[controller]), dir); found != "" {
			return found
		}
	}
	return ""
}

// ownPaths maps each controller to our group; "" is the unified hierarchy.
func ownPaths(file string) map[string]string {
	paths := map[string]string{}
	for _, line := range strings.Split(readText(file), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 3 {
			continue
		}
		for _, controller := range strings.Split(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	return paths
}

func firstWith(file string, dirs ...string) string {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir
		}
	}
	return ""
}

// cpuCount is what the sandbox may use: its quota, at most the processors it may run on.
func (s source) cpuCount() float64 {
	count := float64(allowedProcessors())
	if quota := s.quota(); quota > 0 {
		return min(count, quota)
	}
	return count
}

func allowedProcessors() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || set.Count() == 0 {
		return 1
	}
	return set.Count()
}

// quota in processors; 0 without one.
func (s source) quota() float64 {
	var limit, period float64
	if s.cpu != "" {
		limit, period = number(filepath.Join(s.cpu, "cpu.cfs_quota_us")), number(filepath.Join(s.cpu, "cpu.cfs_period_us"))
	} else if fields := strings.Fields(readText(filepath.Join(s.unified, "cpu.max"))); s.unified != "" && len(fields) == 2 {
		limit, period = parseNumber(fields[0]), parseNumber(fields[1])
	}
	if limit <= 0 || period <= 0 {
		return 0
	}
	return limit / period
}

// cpuUsed is the processor time used so far.
func (s source) cpuUsed() (time.Duration, error) {
	if s.cpuUse != "" {
		return time.Duration(number(filepath.Join(s.cpuUse, "cpuacct.usage"))), nil
	}
	if s.unified != "" {
		if micros, ok := keyed(filepath.Join(s.unified, "cpu.stat"), "usage_usec"); ok {
			return time.Duration(micros) * time.Microsecond, nil
		}
	}
	return s.hostCPUUsed()
}

// hostCPUUsed adds up the busy columns of /proc/stat, which counts in hundredths of a second.
func (s source) hostCPUUsed() (time.Duration, error) {
	line, _, _ := strings.Cut(readText(filepath.Join(s.root, "proc/stat")), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat says nothing about processor time")
	}
	var busy float64
	for _, column := range []int{1, 2, 3, 6, 7, 8} { // user, nice, system, irq, softirq, steal
		busy += parseNumber(fields[column])
	}
	return time.Duration(busy) * time.Second / 100, nil
}

// memory reads usage and limit. A group without a limit has the host's.
func (s source) memory() (memory, error) {
	total, ok := keyed(filepath.Join(s.root, "proc/meminfo"), "MemTotal:")
	if !ok {
		return memory{}, fmt.Errorf("/proc/meminfo does not tell the size of the memory")
	}
	host := uint64(total) * 1024
	switch {
	case s.memoryV1 != "":
		return s.groupMemory(s.memoryV1, "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", host), nil
	case s.unified != "" && firstWith("memory.current", s.unified) != "":
		return s.groupMemory(s.unified, "memory.current", "memory.max", "inactive_file", host), nil
	}
	available, _ := keyed(filepath.Join(s.root, "proc/meminfo"), "MemAvailable:")
	free, _ := keyed(filepath.Join(s.root, "proc/meminfo"), "MemFree:")
	used := host - min(host, uint64(available)*1024)
	return memory{total: host, used: used, cached: uint64(max(0, available-free)) * 1024}, nil
}

func (s source) groupMemory(dir, usage, limit, cache string, host uint64) memory {
	current := uint64(number(filepath.Join(dir, usage)))
	inactive, _ := keyed(filepath.Join(dir, "memory.stat"), cache)
	cached := min(current, uint64(inactive))
	total := host
	if allowed := number(filepath.Join(dir, limit)); allowed > 0 {
		total = min(host, uint64(min(allowed, math.MaxInt64)))
	}
	return memory{total: total, used: min(total, current-cached), cached: cached}
}

func readText(file string) string {
	content, err := plain.Read(file, 1<<20)
	if err != nil {
		return ""
	}
	return string(content)
}

func number(file string) float64 { return parseNumber(strings.TrimSpace(readText(file))) }

// parseNumber is 0 for "max" and for everything else that is no number.
func parseNumber(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return 0
	}
	return value
}

// keyed finds the number behind a key in a file of "key value" lines.
func keyed(file, key string) (float64, bool) {
	for _, line := range strings.Split(readText(file), "\n") {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == key {
			return parseNumber(fields[1]), true
		}
	}
	return 0, false
}
