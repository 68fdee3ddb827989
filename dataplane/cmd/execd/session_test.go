// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// session is a shell session of a daemon.
type session struct {
	d  *daemon
	id string
}

func (d *daemon) session(body any) session {
	d.t.Helper()
	status, text := d.call("POST", "/session", body)
	equal(d.t, status, 200)
	var answer struct {
		SessionID string `json:"session_id"`
	}
	must(d.t, json.Unmarshal([]byte(text), &answer))
	return session{d, answer.SessionID}
}

func (s session) run(text string) result {
	s.d.t.Helper()
	return s.with(map[string]any{"command": text})
}

func (s session) with(body map[string]any) result {
	s.d.t.Helper()
	r := s.d.stream("/session/"+s.id+"/run", body, false)
	equal(s.d.t, r.id(), s.id)
	return r
}

// shells runs a test with bash, and with the plain sh that remains where bash is missing.
func shells(t *testing.T, test func(t *testing.T, d *daemon)) {
	t.Run("bash", func(t *testing.T) { test(t, start(t, options{cgroup: true})) })
	t.Run("sh", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("hiding bash needs root")
		}
		test(t, start(t, options{withoutBash: true}))
	})
}

func TestSessionKeepsItsState(t *testing.T) {
	shells(t, func(t *testing.T, d *daemon) {
		dir := filepath.Join(d.dir, "made", "here")
		s := d.session(map[string]any{"cwd": dir})
		s.run("pwd").succeeded().printed(dir)
		s.run("export A=1; b=2; f() { echo f$A; }; cd /usr").succeeded()
		s.run("f; echo $b; pwd").succeeded().printed("f1", "2", "/usr")
		s.with(map[string]any{"command": "pwd", "cwd": "/tmp"}).printed("/tmp")
		s.with(map[string]any{"command": "pwd", "cwd": "$HOME/../usr"}).printed("/usr")
		s.with(map[string]any{"command": "pwd", "cwd": "bin"}).printed("/usr/bin")
		s.run("echo out; echo err >&2").succeeded().printed("out", "err")
		s.run("sh -c 'exit 7'").failedWith("CommandExecError", "7")
		s.run("read x; echo [$x]").succeeded().printed("[]")
	})
}

func TestB015DeadShellsAreReplaced(t *testing.T) {
	shells(t, func(t *testing.T, d *daemon) {
		s := d.session(nil)
		s.run("export KEPT='it'\"'\"'s'; cd /usr").succeeded()
		s.run("export LATE=1; echo before; exit 3").failedWith("CommandExecError", "3").printed("before")
		s.run("pwd; echo $KEPT $LATE").succeeded().printed("/usr", "it's 1")
		s.run("exec echo replaced").succeeded().printed("replaced")
		s.run("echo $KEPT").succeeded().printed("it's")
		equal(t, s.run("kill -9 $$").last().Signal, "SIGKILL")
		s.run("pwd; echo $KEPT").succeeded().printed("/usr", "it's")
		s.run("set -e; false; echo no").failedWith("CommandExecError", "1").printed()
		s.run("echo fine").succeeded().printed("fine")
	})
}

func TestB015StartupFileCannotSwallowTheCommand(t *testing.T) {
	rc := filepath.Join(t.TempDir(), "rc")
	must(t, os.WriteFile(rc, []byte("cat; read line; FROM_RC=1\n"), 0o644))
	env := map[string]string{"PATH": os.Getenv("PATH"), "BASH_ENV": rc, "ENV": rc}
	d := start(t, options{document: map[string]any{"env": env}})
	s := d.session(nil)
	s.run("echo $FROM_RC $BASH_ENV").succeeded().printed("1 " + rc)
}

func TestSessionTextMeansWhatItMeansInAScript(t *testing.T) {
	d := start(t, options{})
	s := d.session(nil)
	s.run("cat <<EOF\na $((1+1))\nEOF").succeeded().printed("a 2")
	s.run("echo 'unterminated").failedWith("CommandExecError", "2")
	s.run("if then").failedWith("CommandExecError", "2")
	s.run("# only a comment").succeeded().printed()
	s.run("exec >&-; true").succeeded()
	s.run("exec 92>&- 91>&- 90>&- 93>&-; echo on").succeeded().printed("on")
	s.run("for i in 1 2; do break; done; printf 'no newline'").succeeded().printed("no newline")
	s.run("set -o noclobber; set -u; set -f; IFS=x").succeeded()
	s.run("printf 'a\\n\\nb'").succeeded().printed("a", "\n", "b")
	s.run("cat <(echo one) <(echo two)").succeeded().printed("one", "two")
	size := 3 << 20
	s.run("x='" + strings.Repeat("a", size) + "'; echo ${#x}").succeeded().printed(fmt.Sprint(size))
}

func TestSessionTimeoutLeavesItUsable(t *testing.T) {
	trees(t, func(t *testing.T, d *daemon) {
		s := d.session(map[string]any{"cwd": "/usr"})
		s.run("export A=1").succeeded()
		r := s.with(map[string]any{"command": "echo so far; setsid sleep 3151 & sleep 3151", "timeout": 300})
		r.failedWith("CommandTimeoutError", "143").printed("so far")
		equal(t, running(t, "sleep 3151"), 0)
		s.run("pwd; echo $A").succeeded().printed("/usr", "1")
	})
}

func TestSessionRunsAreSerialAndInterruptible(t *testing.T) {
	d := start(t, options{})
	s := d.session(nil)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { s.run("echo in; sleep 0.05; echo out").succeeded().printed("in", "out") })
	}
	group.Wait()
	group.Go(func() { s.run("sleep 3161").failedWith("CommandInterruptedError", "143") })
	eventually(t, 3*time.Second, "it runs", func() bool { return running(t, "sleep 3161") > 0 })
	status, _ := d.call("DELETE", "/command?id="+s.id, nil)
	equal(t, status, 200)
	group.Wait()
	s.run("echo on").succeeded().printed("on")
}

func TestDeletedSessionIsGone(t *testing.T) {
	d := start(t, options{})
	s := d.session(nil)
	var group sync.WaitGroup
	group.Go(func() { s.run("sleep 3171").failedWith("CommandInterruptedError", "143") })
	eventually(t, 3*time.Second, "it runs", func() bool { return running(t, "sleep 3171") > 0 })
	status, _ := d.call("DELETE", "/session/"+s.id, nil)
	equal(t, status, 200)
	group.Wait()
	for _, call := range [][2]string{{"DELETE", "/session/" + s.id}, {"POST", "/session/" + s.id + "/run"}} {
		status, body := d.call(call[0], call[1], `{"command":"true"}`)
		if status != 404 || !strings.Contains(body, "CONTEXT_NOT_FOUND") {
			t.Errorf("%d %s", status, body)
		}
	}
	eventually(t, 3*time.Second, "its shell ends", func() bool { return len(children(t, d.pid())) == 1 })
}

func TestSessionBodiesThatAreRefused(t *testing.T) {
	d := start(t, options{})
	s := d.session("")
	for _, body := range []string{``, `{}`, `{"command":"a\u0000"}`, `{"command":"a","timeout":-1}`, `{"command":"a","envs":{"A":"b"}}`} {
		if status, answer := d.call("POST", "/session/"+s.id+"/run", body); status != 400 {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
}
