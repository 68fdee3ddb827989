// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// trees runs a test with both ways to find a command's descendants.
func trees(t *testing.T, test func(t *testing.T, d *daemon)) {
	t.Run("cgroup", func(t *testing.T) { test(t, start(t, options{cgroup: true})) })
	t.Run("groups", func(t *testing.T) { test(t, start(t, options{})) })
}

func TestEchoIsOneLine(t *testing.T) {
	d := start(t, options{})
	r := d.shell("echo hello; echo oops >&2").succeeded().printed("hello")
	equal(t, strings.Join(r.texts("stderr"), "|"), "oops")
	equal(t, len(r.id()), 32)
}

func TestB001OneVeryLongLine(t *testing.T) {
	const size = 20 << 20
	d := start(t, options{})
	before := memory(t, d.pid())
	for _, tail := range []string{"", "; echo"} {
		text := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' a%s", size, tail)
		raw := d.stream("/command", map[string]any{"command": text}, true).succeeded()
		equal(t, bytes.Count(raw.bytes("stdout"), []byte("a")), size)
		equal(t, len(raw.bytes("stdout")), size+len(strings.TrimSpace(tail))/6)
		lines := d.shell(text).succeeded()
		equal(t, len(strings.Join(lines.texts("stdout"), "")), size)
	}
	if grown := memory(t, d.pid()) - before; grown > 64<<10 {
		t.Errorf("the daemon grew by %d KiB", grown)
	}
}

func TestB003LineEnds(t *testing.T) {
	d := start(t, options{})
	const text = `printf 'a\rb\r\nc\n\n\xc3'; sleep 0.1; printf '\xa9\xff'`
	d.shell(text).succeeded().printed("a", "b", "c", "\n", "é\ufffd")
	raw := d.stream("/command", map[string]any{"command": text}, true).succeeded()
	equal(t, string(raw.bytes("stdout")), "a\rb\r\nc\n\n\xc3\xa9\xff")
	offset := int64(0)
	for _, e := range raw.events[1 : len(raw.events)-1] {
		equal(t, e.Offset, offset)
		offset += int64(len(e.Text)) + int64(len(e.Base64)*3/4)
		if e.Base64 != "" {
			break
		}
	}
}

func TestB003RawTextIsLive(t *testing.T) {
	d := start(t, options{})
	header := http.Header{"Execd-Stream-Framing": {"raw"}}
	response, err := d.try("POST", "/command", map[string]any{"command": `printf 'a\rb\r\nc'; sleep 30`}, header)
	must(t, err)
	defer response.Body.Close()
	within(t, 500*time.Millisecond, func() {
		text := ""
		for lines := bufio.NewScanner(response.Body); text != "a\rb\r\nc" && lines.Scan(); {
			var e event
			if lines.Text() != "" {
				must(t, json.Unmarshal(lines.Bytes(), &e))
			}
			if e.Type == "stdout" {
				text += e.Text
			}
		}
		equal(t, text, "a\rb\r\nc")
	})
}

func TestB005SlowReader(t *testing.T) {
	d := start(t, options{})
	host := strings.TrimPrefix(d.url, "http://")
	connection, err := net.Dial("tcp", host)
	must(t, err)
	defer connection.Close()
	body := `{"command":"yes | head -c 52428800; echo end >&2"}`
	fmt.Fprintf(connection, "POST /command HTTP/1.1\r\nHost: x\r\nX-EXECD-ACCESS-TOKEN: %s\r\nEXECD-STREAM-FRAMING: raw\r\nContent-Length: %d\r\n\r\n%s", token, len(body), body)
	before := memory(t, d.pid())
	var seen bytes.Buffer
	for range 20 {
		_, err := io.CopyN(&seen, connection, 1024)
		must(t, err)
		within(t, 200*time.Millisecond, func() { d.call("GET", "/ping", nil) })
		within(t, 200*time.Millisecond, func() { d.shell("true").succeeded() })
		time.Sleep(20 * time.Millisecond)
	}
	if grown := memory(t, d.pid()) - before; grown > 32<<10 {
		t.Errorf("the daemon grew by %d KiB", grown)
	}
	must(t, connection.SetReadDeadline(time.Now().Add(30*time.Second)))
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(&seen, connection)), nil)
	must(t, err)
	content, err := io.ReadAll(response.Body)
	must(t, err)
	r := parseStream(t, content).succeeded()
	equal(t, bytes.Count(r.bytes("stdout"), []byte("y\n")), 52428800/2)
	equal(t, string(r.bytes("stderr")), "end\n")
}

func TestB007ManyStreamsOnOneConnection(t *testing.T) {
	d := start(t, options{cgroup: true})
	connections := 0
	client := &http.Client{Transport: &http.Transport{Dial: func(network, address string) (net.Conn, error) {
		connections++
		return net.Dial(network, address)
	}}}
	body := `{"command":"true"}`
	for range 300 {
		request, err := http.NewRequest("POST", d.url+"/command", strings.NewReader(body))
		must(t, err)
		request.Header.Set("X-EXECD-ACCESS-TOKEN", token)
		response, err := client.Do(request)
		must(t, err)
		content, err := io.ReadAll(response.Body)
		must(t, err)
		must(t, response.Body.Close())
		parseStream(t, content).succeeded()
	}
	equal(t, connections, 1)
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() { d.shell(fmt.Sprintf("echo %d", i)).succeeded().printed(fmt.Sprint(i)) })
	}
	group.Wait()
}

func TestB009CommandNotFound(t *testing.T) {
	d := start(t, options{})
	within(t, 2*time.Second, func() {
		r := d.shell("no-such-binary --version").failedWith("CommandExecError", "127")
		if !strings.Contains(strings.Join(r.texts("stderr"), ""), "no-such-binary") {
			t.Errorf("stderr: %q", r.texts("stderr"))
		}
		r = d.run(map[string]any{"argv": []string{"no-such-binary", "--version"}})
		equal(t, r.last().Reason, "not_found")
		_, status := d.call("GET", "/command/status/"+r.id(), nil)
		if !strings.Contains(status, `"exit_code":127`) {
			t.Error(status)
		}
	})
}

func TestB011TimeoutEndsTheTree(t *testing.T) {
	trees(t, func(t *testing.T, d *daemon) {
		r := d.run(map[string]any{"command": "echo so far; sh -c 'sleep 3111 & setsid sleep 3112 & wait'", "timeout": 300})
		r.failedWith("CommandTimeoutError", "143").printed("so far")
		equal(t, running(t, "sleep 311"), 0)
		within(t, 4*time.Second, func() {
			r := d.run(map[string]any{"command": `trap "" TERM; while :; do sleep 0.1; done`, "timeout": 300})
			equal(t, r.failedWith("CommandTimeoutError", "137").last().Signal, "SIGKILL")
		})
	})
}

func TestInterruptEndsTheTreeAndTheStream(t *testing.T) {
	trees(t, func(t *testing.T, d *daemon) {
		response, err := d.try("POST", "/command", map[string]any{"command": "(setsid sleep 3121 &); sleep 3122"}, nil)
		must(t, err)
		defer response.Body.Close()
		id, rest := readInit(t, response.Body)
		eventually(t, 5*time.Second, "both run", func() bool { return running(t, "sleep 312") >= 2 })
		status, _ := d.call("DELETE", "/command?id="+id, nil)
		equal(t, status, 200)
		end, err := io.ReadAll(rest)
		must(t, err)
		if !bytes.Contains(end, []byte(`"CommandInterruptedError","evalue":"143"`)) {
			t.Errorf("%s", end)
		}
		equal(t, running(t, "sleep 312"), 0)
		status, body := d.call("DELETE", "/command?id="+id, nil)
		equal(t, status, 500)
		if !strings.Contains(body, "RUNTIME_ERROR") {
			t.Error(body)
		}
	})
}

// readInit takes the first event off a stream.
func readInit(t *testing.T, body io.Reader) (id string, rest io.Reader) {
	t.Helper()
	buffered := bufio.NewReader(body)
	line, err := buffered.ReadString('\n')
	must(t, err)
	var init event
	must(t, json.Unmarshal([]byte(line), &init))
	equal(t, init.Type, "init")
	return init.Text, buffered
}

func TestSurvivorsDoNotHoldTheStream(t *testing.T) {
	trees(t, func(t *testing.T, d *daemon) {
		within(t, time.Second, func() {
			d.shell("sleep 3131 & (setsid sh -c 'sleep 0.3; echo late; sleep 3131' &); echo done").succeeded().printed("done")
		})
		within(t, time.Second, func() {
			d.stream("/command", map[string]any{"command": "yes & echo first >&2"}, true).succeeded()
		})
		if running(t, "sleep 3131") == 0 {
			t.Error("a finished command's children are to live on")
		}
	})
}

func TestDetachedFromTheClient(t *testing.T) {
	d := start(t, options{})
	mark := filepath.Join(d.dir, "mark")
	response, err := d.try("POST", "/command", map[string]any{"command": "echo early; sleep 0.3; echo late; echo x > " + mark}, nil)
	must(t, err)
	id, _ := readInit(t, response.Body)
	must(t, response.Body.Close())
	eventually(t, 3*time.Second, "the command goes on", func() bool {
		_, err := os.Stat(mark)
		return err == nil
	})
	_, logs := d.call("GET", "/command/"+id+"/logs", nil)
	equal(t, logs, "early\nlate\n")
	_, logs = d.call("GET", "/command/"+id+"/logs?cursor=6", nil)
	equal(t, logs, "late\n")
	_, logs = d.call("GET", "/command/"+id+"/logs?cursor=600", nil)
	equal(t, logs, "")
}

func TestBackground(t *testing.T) {
	d := start(t, options{})
	var r result
	within(t, time.Second, func() {
		r = d.run(map[string]any{"command": "echo one; sleep 0.3; echo two >&2; exit 3", "background": true}).succeeded()
	})
	_, status := d.call("GET", "/command/status/"+r.id(), nil)
	if !strings.Contains(status, `"running":true`) || strings.Contains(status, "exit_code") {
		t.Error(status)
	}
	eventually(t, 3*time.Second, "it ends with its code", func() bool {
		_, status = d.call("GET", "/command/status/"+r.id(), nil)
		return strings.Contains(status, `"exit_code":3`)
	})
	response, err := d.try("GET", "/command/"+r.id()+"/logs", nil, nil)
	must(t, err)
	defer response.Body.Close()
	logs, err := io.ReadAll(response.Body)
	must(t, err)
	equal(t, string(logs), "one\ntwo\n")
	equal(t, response.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"), "8")
}

func TestB017VeryLongCommands(t *testing.T) {
	d := start(t, options{})
	for _, size := range []int{131_000, 200 << 10, 3 << 20} {
		text := "x='" + strings.Repeat("a", size) + "'; echo ${#x}; cat; ls /proc/self/fd | wc -l"
		d.shell(text).succeeded().printed(fmt.Sprint(size), "4")
	}
	r := d.run(map[string]any{"argv": []string{"true", strings.Repeat("a", 200<<10)}})
	if r.last().Reason != "start" || !strings.Contains(r.last().Error.Evalue, "too long") {
		t.Errorf("%+v", r.last())
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	d := start(t, options{})
	for _, body := range []string{
		``, `{`, `{}`, `{"command":"a","argv":["b"]}`, `{"argv":[""]}`, `{"argv":["a\u0000"]}`, `{"command":"a\u0000"}`,
		`{"command":"a","timeout":0}`, `{"command":"a","gid":1}`, `{"command":"a","uid":-1}`, `{"command":"a","uid":4294967295}`,
		`{"command":"a","cwd":"/no/such"}`, `{"command":"a","cwd":"/etc/passwd"}`, `{"command":"a","envs":{"a=b":"c"}}`, `{"command":5}`,
	} {
		status, answer := d.call("POST", "/command", body)
		if status != 400 || !strings.Contains(answer, `"code":"INVALID_REQUEST_BODY"`) || !strings.Contains(answer, `"message":"`) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	d.run(map[string]any{"command": "echo $A", "cwd": nil, "timeout": nil, "uid": nil, "gid": nil, "envs": map[string]any{"A": "b"}, "argv": nil}).printed("b")
}

func TestEnvironmentOrder(t *testing.T) {
	d := start(t, options{document: map[string]any{"env": map[string]string{"A": "base", "B": "base", "C": "base"}}})
	must(t, os.WriteFile(filepath.Join(d.dir, ".env"), []byte("B=file\nC='two\nlines'\nnonsense\nD=$B-x\n"), 0o600))
	d.run(map[string]any{"command": `echo "$A $B $C $D $EXECD_ENVS"`, "envs": map[string]string{"A": "request"}}).
		printed("request file two", "lines file-x "+filepath.Join(d.dir, ".env"))
	d.run(map[string]any{"command": "pwd", "cwd": "$WHERE/../tmp", "envs": map[string]string{"WHERE": "/usr"}}).printed("/tmp")
}

func TestIdentity(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root")
	}
	d := start(t, options{})
	d.run(map[string]any{"command": "id -u; id -g; echo $HOME", "uid": 1}).printed("1", "1", "/usr/sbin")
	d.run(map[string]any{"command": "echo out > /dev/stdout; echo err > /dev/stderr", "uid": 1}).succeeded().printed("out")
	d.run(map[string]any{"command": "id -u; id -g; id -G", "uid": 12345, "gid": 54321}).printed("12345", "54321", "54321")
}

func TestStdin(t *testing.T) {
	d := start(t, options{})
	d.shell("cat; echo end").succeeded().printed("end")
	response, err := d.try("POST", "/command", map[string]any{"command": "cat; echo end", "stdin": true}, nil)
	must(t, err)
	defer response.Body.Close()
	id, stream := readInit(t, response.Body)
	status, body := d.call("POST", "/command/"+id+"/stdin", "hello\n")
	equal(t, status, 200)
	equal(t, body, `{"written":6}`)
	status, _ = d.call("DELETE", "/command/"+id+"/stdin", nil)
	equal(t, status, 200)
	rest, err := io.ReadAll(stream)
	must(t, err)
	if !bytes.Contains(rest, []byte(`"execution_complete"`)) {
		t.Errorf("%s", rest)
	}
	status, body = d.call("POST", "/command/"+id+"/stdin", "x")
	if status != 409 || !strings.Contains(body, "STDIN_CLOSED") {
		t.Errorf("%d %s", status, body)
	}
}
