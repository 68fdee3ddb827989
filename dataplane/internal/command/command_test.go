// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

func newEnvironment() *environment.Environment {
	user := environment.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	return environment.New(map[string]string{"PATH": os.Getenv("PATH")}, "", "/", user)
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"command":"true"}`, `{"argv":["a","b"],"timeout":5}`, `{"command":"a","envs":{"A":null},"uid":1,"gid":2}`,
		`{"command":"a","timeout":9223372036854775807}`, `{"argv":[],"command":""}`, `{"command":"a","cwd":"$HOME/~"}`,
	} {
		f.Add(seed)
	}
	env := newEnvironment()
	f.Fuzz(func(t *testing.T, body string) {
		var req request
		if json.Unmarshal([]byte(body), &req) != nil {
			return
		}
		p, err := req.check(env)
		if err != nil {
			return
		}
		if (p.script == "") == (len(p.argv) == 0) || p.timeout < 0 || !strings.HasPrefix(p.cwd, "/") {
			t.Errorf("%s became %+v", body, p)
		}
		if strings.Contains(p.script, "\x00") || strings.Contains(strings.Join(p.argv, ""), "\x00") {
			t.Errorf("%s carries a NUL byte", body)
		}
	})
}

func TestParseCursor(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "0": 0, "17": 17} {
		if got, err := parseCursor(text); got != want || err != nil {
			t.Error(text, got, err)
		}
	}
	for _, text := range []string{"-1", "x", "1.5", "99999999999999999999"} {
		if _, err := parseCursor(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		outcome             Outcome
		reason, name, value string
	}{
		{Outcome{Exit: process.Exit{Code: 3}}, ReasonExit, nameExec, "3"},
		{Outcome{Exit: process.Exit{Code: 137, Signal: unix.SIGKILL}}, ReasonSignal, nameExec, "137"},
		{Outcome{Exit: process.Exit{Code: 137, Signal: unix.SIGKILL, OOM: true}}, ReasonOOM, nameOOM, "137"},
		{Outcome{Exit: process.Exit{Code: 143, Signal: unix.SIGTERM}, Stopped: ReasonTimeout}, ReasonTimeout, nameTimeout, "143"},
		{Outcome{Stopped: ReasonInterrupted}, ReasonInterrupted, nameInterrupt, "0"},
		{Outcome{Start: errors.New("why")}, ReasonStart, nameExec, "why"},
		{Outcome{Start: &environment.NotFoundError{Name: "x"}}, ReasonNotFound, nameExec, "x: command not found in PATH"},
	} {
		failure := c.outcome.Failure()
		if c.outcome.Reason() != c.reason || failure.Name != c.name || failure.Value != c.value || len(failure.Traceback) == 0 {
			t.Errorf("%+v: %s %+v", c.outcome, c.outcome.Reason(), failure)
		}
	}
}

// usage is what must not grow.
type usage struct {
	goroutines, descriptors, children int
}

func measure(t *testing.T) usage {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	u := usage{goroutines: runtime.NumGoroutine(), descriptors: len(names)}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		content, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err == nil {
			u.children += len(strings.Fields(string(content)))
		}
	}
	return u
}

// leakCommands is how many commands the leak test runs; set CASULO_LEAK_COMMANDS=10000 for the long form.
func leakCommands(t *testing.T) int {
	text := os.Getenv("CASULO_LEAK_COMMANDS")
	if text == "" {
		return 200
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return count
}

func TestNothingLeaks(t *testing.T) {
	supervisor, err := process.NewSupervisor(process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	router := api.NewRouter("")
	New(supervisor, newEnvironment(), output.NewStore([]string{t.TempDir()}, 64<<20)).Routes(router)
	server := httptest.NewServer(router)
	defer server.Close()
	bodies := []string{
		`{"command":"true"}`, `{"command":"echo x; echo y >&2; exit 3"}`, `{"command":"(sleep 0.01 &); echo z"}`, `{"argv":["no-such"]}`,
		`{"command":"echo b","background":true}`, `{"command":"sleep 9","timeout":5}`, `{"command":"head -c 200000 /dev/zero"}`,
	}
	runAll(t, server, bodies, len(bodies))
	settle(server)
	before := measure(t)
	runAll(t, server, bodies, leakCommands(t))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		settle(server)
		after := measure(t)
		if after.goroutines <= before.goroutines && after.descriptors <= before.descriptors && after.children == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("before %+v, after %+v", before, after)
		}
	}
}

func settle(server *httptest.Server) { server.Client().CloseIdleConnections() }

func runAll(t *testing.T, server *httptest.Server, bodies []string, count int) {
	t.Helper()
	work := make(chan string)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for body := range work {
				if err := runOne(server, body); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count {
		work <- bodies[i%len(bodies)]
	}
	close(work)
	group.Wait()
}

func runOne(server *httptest.Server, body string) error {
	response, err := server.Client().Post(server.URL+"/command", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || strings.Count(string(content), `"type":"e`) != 1 {
		return fmt.Errorf("%s: %d %s %w", body, response.StatusCode, content, err)
	}
	return nil
}
