// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// screen is a client of a terminal: what it received, in order.
type screen struct {
	t      *testing.T
	socket *websocket.Conn
	ctx    context.Context
	text   strings.Builder
	// next is the offset of the byte after the last one received.
	next   int64
	frames []map[string]any
	closed websocket.StatusCode
}

func (d *daemon) terminal(body any) string {
	d.t.Helper()
	status, text := d.call("POST", "/pty", body)
	equal(d.t, status, 201)
	var answer map[string]string
	must(d.t, json.Unmarshal([]byte(text), &answer))
	return answer["session_id"]
}

func (d *daemon) attach(id, query string) *screen {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	d.t.Cleanup(cancel)
	header := http.Header{"X-Execd-Access-Token": {token}}
	socket, _, err := websocket.Dial(ctx, d.url+"/pty/"+id+"/ws?"+query, &websocket.DialOptions{HTTPHeader: header})
	must(d.t, err)
	socket.SetReadLimit(1 << 20)
	return &screen{t: d.t, socket: socket, ctx: ctx}
}

// read takes one frame; false means that the connection ended.
func (s *screen) read() bool {
	kind, data, err := s.socket.Read(s.ctx)
	if err != nil {
		s.closed = websocket.CloseStatus(err)
		return false
	}
	if kind == websocket.MessageText {
		var frame map[string]any
		must(s.t, json.Unmarshal(data, &frame))
		s.frames = append(s.frames, frame)
		if offset, ok := frame["offset"].(float64); ok {
			s.next = int64(offset)
		}
		return true
	}
	payload := data[1:]
	if data[0] == 0x03 {
		s.next = int64(binary.BigEndian.Uint64(data[1:9]))
		payload = data[9:]
	}
	s.next += int64(len(payload))
	s.text.Write(payload)
	return true
}

// until reads until the text contains what is wanted.
func (s *screen) until(want string) *screen {
	s.t.Helper()
	for !strings.Contains(s.text.String(), want) {
		if !s.read() {
			s.t.Fatalf("%q is not in %q", want, s.text.String())
		}
	}
	return s
}

// frame reads until a text frame of a type comes.
func (s *screen) frame(kind string) map[string]any {
	s.t.Helper()
	for seen := 0; ; {
		for ; seen < len(s.frames); seen++ {
			if s.frames[seen]["type"] == kind {
				found := s.frames[seen]
				s.frames = s.frames[seen+1:]
				return found
			}
		}
		if !s.read() {
			s.t.Fatalf("no %s frame", kind)
		}
	}
}

func (s *screen) press(text string) {
	s.t.Helper()
	must(s.t, s.socket.Write(s.ctx, websocket.MessageBinary, append([]byte{0}, text...)))
}

func (s *screen) send(frame map[string]any) {
	s.t.Helper()
	text, err := json.Marshal(frame)
	must(s.t, err)
	must(s.t, s.socket.Write(s.ctx, websocket.MessageText, text))
}

func TestB019ResizeReattachReplay(t *testing.T) {
	d := start(t, options{cgroup: true})
	id := d.terminal(map[string]any{"cwd": "/tmp"})
	s := d.attach(id, "")
	equal(t, s.frame("connected")["mode"], any("pty"))
	s.until("# ").press("trap 'echo CHAN''GED' WINCH; stty size\r")
	s.until("\r24 80\r\n")
	// The signal goes to the foreground: wait until that is the shell again.
	for !strings.HasSuffix(s.text.String(), "# ") {
		s.read()
	}
	s.send(map[string]any{"type": "resize", "cols": 120, "rows": 40})
	s.press("\r")
	s.until("CHANGED")
	s.press("stty size; seq 1 160000; echo E''ND\r")
	s.until("\r40 120\r\n").until("\n9999\r\n")
	s.socket.CloseNow()
	time.Sleep(200 * time.Millisecond)
	again := d.attach(id, fmt.Sprintf("since=%d&takeover=1", s.next))
	again.until("END\r\n")
	all := s.text.String() + again.text.String()
	for i := 1; i <= 160000; i++ {
		want := fmt.Sprintf("%d\r\n", i)
		at := strings.Index(all, want)
		if at < 0 {
			t.Fatalf("%d is missing", i)
		}
		all = all[at:]
		if i > 2 && at > len(want)+1 {
			t.Fatalf("before %d there are %d bytes too many", i, at)
		}
	}
	again.press("stty size\r")
	again.until("40 120\r\n")
}

func TestTerminalTakeoverAndViewers(t *testing.T) {
	d := start(t, options{})
	id := d.terminal(nil)
	first := d.attach(id, "")
	first.until("# ")
	_, _, err := websocket.Dial(first.ctx, d.url+"/pty/"+id+"/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"X-Execd-Access-Token": {token}},
	})
	if err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("a second client got in: %v", err)
	}
	viewer := d.attach(id, "view=1")
	viewer.until("# ")
	viewer.press("echo intruder\r")
	equal(t, viewer.frame("error")["code"], any("STDIN_WRITE_FAILED"))
	second := d.attach(id, "takeover=1")
	for first.read() {
	}
	equal(t, first.closed, websocket.StatusCode(4001))
	second.until("# ").press("exit 5\r")
	for _, s := range []*screen{second, viewer} {
		equal(t, s.frame("exit")["exit_code"], any(5.0))
		for s.read() {
		}
		equal(t, s.closed, websocket.StatusNormalClosure)
	}
	if strings.Contains(second.text.String(), "intruder") {
		t.Error("a viewer typed")
	}
	d.attach(id, "since=999999").until("# ").press("exit\r")
}

func TestTerminalSignalsAndFrames(t *testing.T) {
	d := start(t, options{})
	id := d.terminal(map[string]any{"command": "sleep 3191; cat"})
	s := d.attach(id, "")
	eventually(t, 3*time.Second, "it runs", func() bool { return running(t, "sleep 3191") > 0 })
	must(t, s.socket.Write(s.ctx, websocket.MessageText, []byte("no json")))
	equal(t, s.frame("error")["code"], any("INVALID_FRAME"))
	s.send(map[string]any{"type": "ping"})
	s.frame("pong")
	s.send(map[string]any{"type": "signal", "signal": "SIGINT"})
	equal(t, s.frame("exit")["exit_code"], any(130.0))
}

func TestPipeModeKeepsTheStreamsApart(t *testing.T) {
	d := start(t, options{})
	id := d.terminal(map[string]any{"command": "read x; echo out $x; echo err >&2; exit 3"})
	s := d.attach(id, "pty=0")
	equal(t, s.frame("connected")["mode"], any("pipe"))
	s.send(map[string]any{"type": "stdin", "data": "hello\n"})
	kinds := map[byte]string{}
	for {
		kind, data, err := s.socket.Read(s.ctx)
		if err != nil || kind == websocket.MessageText {
			break
		}
		kinds[data[0]] += string(data[1:])
	}
	equal(t, kinds[1], "out hello\n")
	equal(t, kinds[2], "err\n")
}

func TestDeletedTerminalEndsItsPrograms(t *testing.T) {
	trees(t, func(t *testing.T, d *daemon) {
		id := d.terminal(map[string]any{"command": "setsid sleep 3201 & sleep 3202"})
		s := d.attach(id, "")
		eventually(t, 3*time.Second, "both run", func() bool { return running(t, "sleep 320") > 1 })
		status, _ := d.call("DELETE", "/pty/"+id, nil)
		equal(t, status, 200)
		s.frame("exit")
		eventually(t, 3*time.Second, "both are gone", func() bool { return running(t, "sleep 320") == 0 })
		status, _ = d.call("GET", "/pty/"+id, nil)
		equal(t, status, 404)
	})
}

func TestStopTellsTerminals(t *testing.T) {
	d := start(t, options{})
	s := d.attach(d.terminal(nil), "")
	s.until("# ")
	d.call("POST", "/v1/internal/stop", nil)
	s.frame("exit")
	if _, _, err := s.socket.Read(s.ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection stays: %v", err)
	}
	d.wait(143)
}

func TestB019LastWordsOfATerminalArrive(t *testing.T) {
	d := start(t, options{cgroup: true})
	for range 30 {
		s := d.attach(d.terminal(map[string]any{"cwd": "/tmp", "command": "seq 20000; exit 4"}), "")
		equal(t, s.frame("exit")["exit_code"], any(4.0))
		if text := s.text.String(); !strings.HasSuffix(text, "\r\n20000\r\n") {
			t.Fatalf("the output ends in %q", text[max(0, len(text)-40):])
		}
	}
}
