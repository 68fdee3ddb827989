// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program is the daemon under test, built once.
var program string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "execd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "execd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

const token = "secret"

// options say how a daemon is started.
type options struct {
	document map[string]any
	cgroup   bool // give it a delegated cgroup
	pidOne   bool // make it process 1 of a namespace
	// withoutBash hides bash from it.
	withoutBash bool
	// pids is the tasks file of a cgroup-v1 group for user processes.
	pids string
	// prefix goes before the daemon's command line.
	prefix []string
}

// daemon is a running execd.
type daemon struct {
	t      *testing.T
	dir    string
	url    string
	cgroup string
	cmd    *exec.Cmd
	answer map[string]any
	exited chan error
}

// start boots a daemon the way a runtime does, and ends it with the test.
func start(t *testing.T, o options) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: t.TempDir(), exited: make(chan error, 1)}
	ours, theirs := seqpacketPair(t)
	defer ours.Close()
	names, files := d.descriptors(o)
	message, err := json.Marshal(map[string]any{"v": 1, "fds": names})
	must(t, err)
	var fds []int
	for _, file := range files {
		fds = append(fds, int(file.Fd()))
	}
	must(t, unix.Sendmsg(int(ours.Fd()), message, unix.UnixRights(fds...), nil, 0))
	for _, file := range files {
		must(t, file.Close())
	}
	d.launch(o, theirs)
	answer := make([]byte, 64<<10)
	n, err := unix.Read(int(ours.Fd()), answer)
	must(t, err)
	must(t, json.Unmarshal(answer[:n], &d.answer))
	if listen, ok := d.answer["listen"].([]any); ok {
		d.url = strings.Replace(listen[0].(string), "tcp://", "http://", 1)
	}
	return d
}

func seqpacketPair(t *testing.T) (ours, theirs *os.File) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	return os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
}

func (d *daemon) descriptors(o options) (names []string, files []*os.File) {
	add := func(name string, file *os.File, err error) {
		must(d.t, err)
		names, files = append(names, name), append(files, file)
	}
	document := map[string]any{
		"sandbox_id": "test", "access_token": token, "listen": []string{"tcp://127.0.0.1:0"},
		"entrypoint": []string{"sleep", "infinity"}, "cwd": "/", "envs_file": filepath.Join(d.dir, ".env"),
		"env": map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/root", "LANG": "C.UTF-8"},
	}
	for name, value := range o.document {
		document[name] = value
	}
	content, err := json.Marshal(document)
	must(d.t, err)
	boot := filepath.Join(d.dir, "boot.json")
	must(d.t, os.WriteFile(boot, content, 0o600))
	file, err := os.Open(boot)
	add("boot", file, err)
	flags := os.O_RDWR | os.O_CREATE | os.O_APPEND
	file, err = os.OpenFile(filepath.Join(d.dir, "events"), flags, 0o600)
	add("events", file, err)
	file, err = os.OpenFile(filepath.Join(d.dir, "log"), flags, 0o600)
	add("log", file, err)
	if o.cgroup {
		d.cgroup = makeCgroup(d.t)
		file, err = os.Open(d.cgroup)
		add("cgroup", file, err)
	}
	if o.pids != "" {
		file, err = os.OpenFile(o.pids, os.O_WRONLY, 0)
		add("pids", file, err)
	}
	return names, files
}

var cgroupCount atomic.Int64

// makeCgroup delegates a cgroup-v2 directory; the test is skipped where there is none to delegate.
func makeCgroup(t *testing.T) string {
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root += "/unified"
	}
	name := fmt.Sprintf("%s/execd-test-%d-%d", root, os.Getpid(), cgroupCount.Add(1))
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Skipf("no cgroup-v2 hierarchy can be delegated here: %v", err)
	}
	t.Cleanup(func() { removeCgroup(t, name) })
	return name
}

func removeCgroup(t *testing.T, name string) {
	must(t, os.WriteFile(name+"/cgroup.kill", []byte("1"), 0))
	entries, err := os.ReadDir(name)
	must(t, err)
	var dirs []string
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, filepath.Join(name, entry.Name()))
		}
	}
	for _, dir := range append(dirs, name) {
		eventually(t, time.Second, "the cgroup is empty", func() bool { return os.Remove(dir) == nil })
	}
}

func (d *daemon) launch(o options, theirs *os.File) {
	argv := []string{program, "--boot-fd", "0"}
	if o.pidOne {
		if os.Getuid() != 0 {
			d.t.Skip("a pid namespace needs root")
		}
		argv = append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}, argv...)
	}
	if o.withoutBash {
		hide := `for b in $(which -a bash); do mount --bind /dev/null $b; done; exec "$@"`
		argv = append([]string{"unshare", "--mount", "sh", "-c", hide, "sh"}, argv...)
	}
	argv = append(o.prefix, argv...)
	d.cmd = exec.Command(argv[0], argv[1:]...)
	stderr, err := os.Create(filepath.Join(d.dir, "stderr"))
	must(d.t, err)
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = theirs, stderr, stderr
	must(d.t, d.cmd.Start())
	must(d.t, theirs.Close())
	must(d.t, stderr.Close())
	go func() { d.exited <- d.cmd.Wait() }()
	d.t.Cleanup(d.end)
}

// end stops the daemon, shows what it complained about, and leaves no process behind.
func (d *daemon) end() {
	if d.url != "" {
		if response, err := d.try("POST", "/v1/internal/stop", map[string]any{"grace_ms": 0}, nil); err == nil {
			response.Body.Close()
		}
	}
	select {
	case <-d.exited:
	case <-time.After(60 * time.Second):
		d.t.Error("the daemon did not end")
		d.cmd.Process.Kill()
	}
	if complaints := d.file("stderr"); d.t.Failed() && complaints != "" {
		d.t.Logf("the daemon's stderr:\n%s", complaints)
	}
}

func (d *daemon) file(name string) string {
	content, err := os.ReadFile(filepath.Join(d.dir, name))
	must(d.t, err)
	return string(content)
}

// pid is the daemon's own, also when a helper made its namespace.
func (d *daemon) pid() int {
	return d.cmd.Process.Pid
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience * limit); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("not within %s: %s", limit, what)
			return
		}
	}
}

// patience is how much longer things may take on a busy machine: tests find what waits, benchmarks what is slow.
const patience = 15

// within fails when an operation takes longer, with patience.
func within(t *testing.T, limit time.Duration, operate func()) {
	t.Helper()
	limit *= patience
	begun := time.Now()
	operate()
	if took := time.Since(begun); took > limit {
		t.Errorf("took %s, allowed are %s", took, limit)
	}
}

// running counts the living processes whose command line contains text.
func running(t *testing.T, text string) int {
	t.Helper()
	count := 0
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, name := range lines {
		content, err := os.ReadFile(name)
		if err == nil && strings.Contains(strings.ReplaceAll(string(content), "\x00", " "), text) {
			count++
		}
	}
	return count
}

// memory is the resident size of a process in KiB.
func memory(t *testing.T, pid int) int {
	t.Helper()
	return statusValue(t, pid, "VmRSS:")
}

func statusValue(t *testing.T, pid int, key string) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(content)) {
		if rest, found := strings.CutPrefix(line, key); found {
			value, err := strconv.Atoi(strings.Fields(rest)[0])
			must(t, err)
			return value
		}
	}
	t.Fatalf("no %s", key)
	return 0
}
