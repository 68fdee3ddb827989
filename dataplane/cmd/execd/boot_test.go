// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestReadyNamesVersionAndAddresses(t *testing.T) {
	d := start(t, options{document: map[string]any{"listen": []string{"tcp://127.0.0.1:0", "unix://" + t.TempDir() + "/s"}}})
	equal(t, d.answer["event"], any("ready"))
	equal(t, len(d.answer["listen"].([]any)), 2)
	status, body := d.call("GET", "/version", nil)
	equal(t, status, 200)
	if !strings.Contains(body, `"features":[`) {
		t.Error(body)
	}
}

func TestOnlyPingAndVersionAreOpen(t *testing.T) {
	d := start(t, options{})
	for path, want := range map[string]int{
		"/ping": 200, "/version": 200, "/command/status/x": 401, "/nowhere": 401, "//command": 401, "/v1/internal/stop": 401,
	} {
		response, err := http.Get(d.url + path)
		must(t, err)
		must(t, response.Body.Close())
		equal(t, response.StatusCode, want)
	}
}

func TestEntrypointThatCannotStart(t *testing.T) {
	for entrypoint, code := range map[string]string{
		`[]`: "SANDBOX::INVALID_ENTRYPOINT", `["no-such-program"]`: "SANDBOX::INVALID_ENTRYPOINT",
		`["/etc/passwd"]`: "SANDBOX::INVALID_ENTRYPOINT", `["/no/such"]`: "SANDBOX::INVALID_ENTRYPOINT",
	} {
		d := start(t, options{document: map[string]any{"entrypoint": jsonText(entrypoint)}})
		equal(t, d.answer["event"], any("failed"))
		equal(t, d.answer["code"], any(code))
	}
}

// jsonText is JSON that goes into a document as it is.
type jsonText string

func (text jsonText) MarshalJSON() ([]byte, error) { return []byte(text), nil }

func TestPreStartComesFirstAndMayRefuse(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	hook := func(text string) map[string]any {
		return map[string]any{"command": []string{"sh", "-c", text}, "timeout_seconds": 0.3}
	}
	d := start(t, options{document: map[string]any{"pre_start": hook("echo prepared; touch " + mark)}})
	equal(t, d.answer["event"], any("ready"))
	equal(t, d.file("log"), "prepared\n")
	_, err := os.Stat(mark)
	must(t, err)
	for text, want := range map[string]string{"echo why; exit 3": "status 3: why", "sleep 60": "did not end within 300ms"} {
		d = start(t, options{document: map[string]any{"pre_start": hook(text)}})
		equal(t, d.answer["code"], any("SANDBOX::START_FAILED"))
		if message := fmt.Sprint(d.answer["message"]); !strings.Contains(message, want) {
			t.Error(message)
		}
	}
}

func TestPeriodicHookRepeats(t *testing.T) {
	hook := map[string]any{"name": "tick", "schedule": "@every 1s", "command": []string{"echo", "tick"}}
	d := start(t, options{document: map[string]any{"periodic": []any{hook}}})
	eventually(t, 4*time.Second, "it ran twice", func() bool { return strings.Count(d.file("log"), "tick\n") >= 2 })
}

func TestB013StopByTheAPIRecordsTheExit(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "bye")
	script := "trap 'echo x > " + mark + "; exit 7' TERM; echo up; while :; do sleep 0.05; done"
	d := start(t, options{pidOne: true, document: map[string]any{"entrypoint": []string{"sh", "-c", script}}})
	eventually(t, 5*time.Second, "the entrypoint runs", func() bool { return d.file("log") == "up\n" })
	status, _ := d.call("POST", "/v1/internal/stop", map[string]any{"grace_ms": 5000})
	equal(t, status, 202)
	within(t, 2*time.Second, func() { d.wait(7) })
	_, err := os.Stat(mark)
	must(t, err)
	if events := d.file("events"); !strings.HasPrefix(events, `{"event":"exit","code":7,"at":`) {
		t.Error(events)
	}
}

// wait expects the daemon to end by itself.
func (d *daemon) wait(code int) {
	d.t.Helper()
	select {
	case err := <-d.exited:
		equal(d.t, d.cmd.ProcessState.ExitCode(), code)
		d.exited <- err
		d.url = ""
	case <-time.After(60 * time.Second):
		d.t.Fatal("the daemon did not end")
	}
}

func TestB013SignalsDoNotEndProcessOne(t *testing.T) {
	d := start(t, options{pidOne: true})
	d.shell("kill 1; kill -9 1; for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; true").succeeded()
	time.Sleep(50 * time.Millisecond)
	d.shell("echo alive; cat /proc/1/comm").succeeded().printed("alive", "execd")
}

func TestStubbornEntrypointIsKilled(t *testing.T) {
	script := `trap "" TERM; echo up; while :; do sleep 0.05; done`
	d := start(t, options{document: map[string]any{"entrypoint": []string{"sh", "-c", script}}})
	eventually(t, 5*time.Second, "the entrypoint runs", func() bool { return d.file("log") == "up\n" })
	d.call("POST", "/v1/internal/stop", map[string]any{"grace_ms": 100})
	d.wait(137)
	if events := d.file("events"); !strings.Contains(events, `"code":null,"signal":"SIGKILL"`) {
		t.Error(events)
	}
}

func TestEndOfTheEntrypointEndsEverything(t *testing.T) {
	for _, pidOne := range []bool{true, false} {
		script := "setsid sleep 3141 & setsid sleep 3141 & echo last words; sleep 0.3; exit 5"
		d := start(t, options{pidOne: pidOne, document: map[string]any{"entrypoint": []string{"sh", "-c", script}}})
		r := d.shell("sleep 3142")
		equal(t, r.last().Signal, "SIGKILL")
		d.wait(5)
		equal(t, d.file("log"), "last words\n")
		equal(t, running(t, "sleep 314"), 0)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	d := start(t, options{})
	d.shell("for i in $(seq 50); do (setsid sleep 0.05 &) ; done").succeeded()
	eventually(t, 3*time.Second, "no zombie is left", func() bool { return len(children(t, d.pid())) == 1 })
}

// children lists the direct children of a process, zombies included.
func children(t *testing.T, pid int) []string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	var all []string
	for _, name := range tasks {
		content, err := os.ReadFile(name)
		if err == nil {
			all = append(all, strings.Fields(string(content))...)
		}
	}
	return all
}

func TestLogKeepsToItsCap(t *testing.T) {
	script := "seq 1 30000; echo end; sleep 60"
	d := start(t, options{document: map[string]any{"entrypoint": []string{"sh", "-c", script}, "log_cap_bytes": 50000}})
	eventually(t, 5*time.Second, "the end is there", func() bool { return strings.HasSuffix(d.file("log"), "\nend\n") })
	lines := strings.Split(strings.TrimSpace(d.file("log")), "\n")
	if size := len(d.file("log")); size > 50000+32<<10 {
		t.Errorf("the log has %d bytes", size)
	}
	first, err := strconv.Atoi(lines[0])
	must(t, err)
	equal(t, lines[len(lines)-2], "30000")
	equal(t, len(lines)-1, 30000-first+1)
}

func TestChildrenStartWithDefaults(t *testing.T) {
	d := start(t, options{})
	d.shell("grep -E 'SigIgn|SigBlk' /proc/self/status | cut -f2").printed("0000000000000000", "0000000000000000")
	d.shell("umask; cat /proc/self/oom_score_adj").printed("0022", "500")
}

func TestIdleDaemonIsSmall(t *testing.T) {
	d := start(t, options{})
	d.shell("true").succeeded()
	eventually(t, 4*time.Second, "at most 6 MiB are resident", func() bool { return memory(t, d.pid()) <= 6<<10 })
	info, err := os.Stat(program)
	must(t, err)
	if info.Size() > 12<<20 {
		t.Errorf("the binary has %d bytes", info.Size())
	}
}
