// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hostile are texts that take from the shell what it needs to say how they ended.
var hostile = []string{
	"set -n", "set -n; echo no", "set -o noexec", "builtin() { :; }", "builtin() { return 0; }; eval() { :; }",
	"enable -n builtin", "enable -n printf", "enable -n eval", "enable -n read", "readonly IFS", "readonly REPLY _",
	"alias printf=: eval=: command=:", "printf() { :; }; export() { :; }; command() { :; }", "shopt -s expand_aliases; alias builtin=:",
	"readonly __casulo", "readonly __casulo=5", "export __casulo=1; readonly $(compgen -v) 2>/dev/null", "readonly ${!__casulo*} x",
	"set -o posix; trap() { :; }", "trap 'echo x' DEBUG; trap 'echo y' ERR; trap 'echo z' RETURN", "trap '' TERM; trap : EXIT",
	"exec 3</dev/null 10<&- 11<&- 12<&-", "ulimit -n 20", "ulimit -n 3", "set -euo pipefail; set -x", "set -k; set -f; IFS=0",
	"for f in $(seq 3 255); do eval \"exec $f>&-\"; done", "unset PATH HOME PWD", "cd /; PATH=/nowhere", "set -o functrace; set -v; set -a",
}

// A text may end its shell, but never the session: what follows is executed, or refused at once.
func TestB015NoTextMakesASessionUnusable(t *testing.T) {
	shells(t, func(t *testing.T, d *daemon) {
		for _, text := range hostile {
			s := d.session(map[string]any{"cwd": "/usr"})
			started := time.Now()
			first := s.run(text)
			for i := range 2 {
				second := s.run("echo ran; (exit 4)")
				printed := strings.Join(second.texts("stdout"), "|")
				if last := second.last(); last.Type != "error" || !strings.Contains(printed, "ran") || last.Error.Evalue != "4" {
					t.Errorf("after %q run %d: %+v", text, i, second.events)
				}
				if strings.Contains(printed, "casulo") || strings.Contains(printed, "builtin") || strings.Contains(printed, "/fd/") {
					t.Errorf("after %q it shows our lines: %q", text, printed)
				}
			}
			if took := time.Since(started); took > patience*5*time.Second {
				t.Errorf("%q took %s", text, took)
			}
			t.Logf("%q: %s %v %s reset=%v", text, first.last().Type, first.texts("stdout"), first.last().Error.Evalue, first.last().SessionReset)
		}
	})
}

func TestSessionThatDoesNotExecuteSaysSo(t *testing.T) {
	d := start(t, options{})
	s := d.session(nil)
	r := s.run("set -n")
	if last := r.last(); last.Error.Ename != "SessionResetError" || last.Reason != "session_reset" || !last.SessionReset {
		t.Errorf("%+v", last)
	}
	equal(t, s.run("true").succeeded().last().SessionReset, false)
}

func TestSessionShowsNoneOfItsDescriptors(t *testing.T) {
	d := start(t, options{})
	for text, code := range map[string]string{
		"ulimit -n 20; echo lim":                                                  "",
		"ulimit -n 20; echo lim; (exit 5)":                                        "5",
		"echo lim; for f in $(seq 3 255); do eval \"exec $f>&-\"; done; true":     "",
		"echo lim; for f in $(seq 3 255); do eval \"exec $f>&-\"; done; (exit 6)": "6",
		"echo lim; exec 2>&- 1>&- 0<&-; (exit 7)":                                 "7",
	} {
		s := d.session(nil)
		r := s.run(text).printed("lim")
		if last := r.last(); last.Error.Evalue != code {
			t.Errorf("%q ended with %+v", text, last)
		}
		s.run("echo on").succeeded().printed("on")
	}
}

func TestSessionShellDeathIsTold(t *testing.T) {
	shells(t, func(t *testing.T, d *daemon) {
		s := d.session(nil)
		equal(t, s.run("f() { :; }").succeeded().last().SessionReset, false)
		equal(t, s.run("exit 3").last().SessionReset, true)
		equal(t, s.run("true").last().SessionReset, false)
		equal(t, s.run("(sleep 0.05; kill -9 $$) & true").last().SessionReset, false)
		time.Sleep(200 * time.Millisecond)
		equal(t, s.run("true").succeeded().last().SessionReset, true)
	})
}

func TestB015UserTrapsKeepTheState(t *testing.T) {
	d := start(t, options{})
	for _, trap := range []string{
		"trap 'echo bye' EXIT", "trap \"echo bye\" 0", "trap -- 'echo bye' INT EXIT TERM", "f() { echo bye; }; trap f EXIT",
		"trap 'echo bye' exit # with a comment", "set -eu; IFS=x; trap 'echo bye' EXIT",
	} {
		s := d.session(nil)
		s.run("export OLD=1").succeeded()
		s.run(trap+"\nexport LATE=2; cd /usr; exit 3").failedWith("CommandExecError", "3").printed("bye")
		s.run("pwd; echo $OLD $LATE").succeeded().printed("/usr", "1 2")
		s.run(trap).succeeded()
		s.run("export LATER=3; cd /tmp; exit 4").failedWith("CommandExecError", "4").printed("bye")
		s.run("pwd; echo $LATER").succeeded().printed("/tmp", "3")
	}
	s := d.session(nil)
	s.run("trap 'echo x' EXIT; trap - EXIT; (trap 'echo sub' EXIT; cd /); trap -p EXIT >/dev/null; export A=1; exit 2").
		failedWith("CommandExecError", "2").printed("sub")
	s.run("echo $A; type -t trap").succeeded().printed("1", "builtin")
}

// The writer may be far ahead of the events: what it printed must be on its way before the end is.
func TestTheEndComesSoonAfterAFloodOfShortLines(t *testing.T) {
	d := start(t, options{})
	s := d.session(nil)
	body := map[string]any{"command": "yes & sleep 0.3; kill $!; wait; date +%s%3N"}
	for _, path := range []string{"/session/" + s.id + "/run", "/command"} {
		response, err := d.try("POST", path, body, nil)
		must(t, err)
		var last, window []byte
		chunk := make([]byte, 64<<10)
		for err == nil {
			var n int
			n, err = response.Body.Read(chunk)
			window = append(last, chunk[:n]...)
			last = bytes.Clone(window[max(0, len(window)-400):])
		}
		equal(t, err, io.EOF)
		must(t, response.Body.Close())
		frames := strings.Split(strings.TrimSpace(string(last)), "\n\n")
		var printed, end event
		must(t, json.Unmarshal([]byte(frames[len(frames)-2]), &printed))
		must(t, json.Unmarshal([]byte(frames[len(frames)-1]), &end))
		finished, err := strconv.ParseInt(printed.Text, 10, 64)
		must(t, err)
		equal(t, end.Type, "execution_complete")
		if behind := time.Now().UnixMilli() - finished; behind > 3000 {
			t.Errorf("%s: the end is %d ms behind", path, behind)
		} else {
			t.Logf("%s: the end is %d ms behind", path, behind)
		}
	}
}
