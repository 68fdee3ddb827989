// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package metrics

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"casulo.dev/dataplane/internal/api"
)

// tree writes files below a directory that stands for "/".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const meminfo = "MemTotal:       8388608 kB\nMemFree: 1048576 kB\nMemAvailable:   4194304 kB\n"

func TestUnifiedHierarchy(t *testing.T) {
	s := findSource(tree(t, map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
		"sys/fs/cgroup/memory.current": "104857600\n", "sys/fs/cgroup/memory.max": "536870912\n",
		"sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 41943040\n",
		"sys/fs/cgroup/cpu.max":     "50000 100000\n", "sys/fs/cgroup/cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
	}))
	checkSource(t, s, memory{total: 512 << 20, used: 60 << 20, cached: 40 << 20}, 0.5, 1500*time.Millisecond)
}

func TestUnifiedHierarchyWithoutNamespaceOrLimits(t *testing.T) {
	s := findSource(tree(t, map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "0::/box\n",
		"sys/fs/cgroup/box/memory.current": "104857600\n", "sys/fs/cgroup/box/memory.max": "max\n",
		"sys/fs/cgroup/box/cpu.max": "max 100000\n", "sys/fs/cgroup/box/cpu.stat": "usage_usec 2\n",
	}))
	checkSource(t, s, memory{total: 8 << 30, used: 100 << 20}, float64(allowedProcessors()), 2*time.Microsecond)
}

func TestSeparateHierarchies(t *testing.T) {
	for _, prefix := range []string{"", "/box"} {
		s := findSource(tree(t, map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:" + prefix + "\n2:cpuacct:" + prefix + "\n1:cpu:" + prefix + "\n0::/\n",
			"sys/fs/cgroup/memory" + prefix + "/memory.usage_in_bytes": "104857600\n",
			"sys/fs/cgroup/memory" + prefix + "/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory" + prefix + "/memory.stat":           "inactive_file 1\ntotal_inactive_file 104857601\n",
			"sys/fs/cgroup/cpu" + prefix + "/cpu.cfs_quota_us":         "25000\n",
			"sys/fs/cgroup/cpu" + prefix + "/cpu.cfs_period_us":        "100000\n",
			"sys/fs/cgroup/cpuacct" + prefix + "/cpuacct.usage":        "7000000000\n",
		}))
		checkSource(t, s, memory{total: 8 << 30, used: 0, cached: 100 << 20}, 0.25, 7*time.Second)
	}
}

func TestNoCgroupAtAll(t *testing.T) {
	s := findSource(tree(t, map[string]string{
		"proc/meminfo": meminfo, "proc/stat": "cpu  100 100 100 9 9 100 100 100 0 0\ncpu0 1\n",
	}))
	checkSource(t, s, memory{total: 8 << 30, used: 4 << 30, cached: 3 << 30}, float64(allowedProcessors()), 6*time.Second)
	if _, err := findSource(t.TempDir()).memory(); err == nil {
		t.Fatal("memory out of nothing")
	}
	if _, err := findSource(t.TempDir()).cpuUsed(); err == nil {
		t.Fatal("processor time out of nothing")
	}
}

func checkSource(t *testing.T, s source, want memory, count float64, used time.Duration) {
	t.Helper()
	got, err := s.memory()
	if err != nil || got != want {
		t.Errorf("memory %+v, %v; want %+v", got, err, want)
	}
	if s.cpuCount() != count {
		t.Errorf("%v processors, want %v", s.cpuCount(), count)
	}
	if got, err := s.cpuUsed(); err != nil || got != used {
		t.Errorf("used %v, %v; want %v", got, err, used)
	}
}

func serve(t *testing.T) (*Service, *httptest.Server) {
	t.Helper()
	s := New(func(uid uint32) string { return "somebody" })
	router := api.NewRouter("")
	s.Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	return s, server
}

func TestRealFigures(t *testing.T) {
	_, server := serve(t)
	for range 3 {
		response, err := http.Get(server.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		var m Metrics
		if err := json.NewDecoder(response.Body).Decode(&m); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if m.CPUCount <= 0 || m.CPUUsedPct < 0 || m.CPUUsedPct > 100 || m.MemTotal <= 0 || m.MemUsed < 0 || m.MemUsed > m.MemTotal {
			t.Fatalf("%+v", m)
		}
		if age := time.Since(time.UnixMilli(m.Timestamp)).Abs(); age > time.Minute {
			t.Fatal(age)
		}
	}
}

func TestBusyProcessorShows(t *testing.T) {
	s := New(nil)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	defer close(stop)
	m, err := s.read(context.Background())
	if err != nil || m.CPUUsedPct*m.CPUCount < 50 {
		t.Fatalf("%+v %v", m, err)
	}
}

func TestWatchSendsLines(t *testing.T) {
	_, server := serve(t)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/metrics/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatal(kind)
	}
	lines := bufio.NewScanner(response.Body)
	for range 2 {
		if !lines.Scan() || !strings.Contains(lines.Text(), `"cpu_used_pct":`) {
			t.Fatal(lines.Text(), lines.Err())
		}
	}
}

func TestProcessList(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	_, server := serve(t)
	response, err := http.Get(server.URL + "/metrics/processes")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct{ Processes []Process }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	for _, p := range answer.Processes {
		if p.PID != child.Process.Pid {
			continue
		}
		if p.Parent != os.Getpid() || p.Name != "sleep" || strings.Join(p.Command, " ") != "sleep 60" || p.User != "somebody" || p.Threads != 1 {
			t.Fatalf("%+v", p)
		}
		if age := time.Since(time.UnixMilli(p.StartedAt)).Abs(); age > 10*time.Second {
			t.Fatal(age)
		}
		return
	}
	t.Fatal("the child is not listed")
}
