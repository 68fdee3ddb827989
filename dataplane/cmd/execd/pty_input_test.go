// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// TestUnreadInputHoldsUpNothing types more than a program reads, and goes on with everything else.
func TestUnreadInputHoldsUpNothing(t *testing.T) {
	d := start(t, options{cgroup: true})
	const busy = "stty -echo 2>/dev/null; trap 'stty size 2>/dev/null; echo GO''T; exit 3' INT; echo REA''DY; while :; do sleep 0.05; done"
	for _, mode := range []string{"pty=1", "pty=0"} {
		id := d.terminal(map[string]any{"command": busy})
		s := d.attach(id, mode)
		s.until("READY")
		lines := strings.Repeat("0123456789abcde\n", 32<<10)
		for range 10 {
			s.press(lines)
		}
		failure := s.frame("error")
		equal(t, failure["code"], any("STDIN_WRITE_FAILED"))
		within(t, 3*time.Second, func() {
			s.send(map[string]any{"type": "ping"})
			s.frame("pong")
			s.send(map[string]any{"type": "resize", "cols": 120, "rows": 40})
			s.send(map[string]any{"type": "signal", "signal": "SIGINT"})
			s.until("GOT")
			equal(t, s.frame("exit")["exit_code"], any(float64(3)))
		})
		if mode == "pty=1" {
			s.until("40 120")
		}
		for s.read() {
		}
		equal(t, s.closed, websocket.StatusNormalClosure)
	}
}

func TestImpossibleTerminals(t *testing.T) {
	d := start(t, options{})
	for _, body := range []map[string]any{{"command": "a\x00b"}, {"cwd": "/tmp\x00"}} {
		status, text := d.call("POST", "/pty", body)
		equal(t, status, 400)
		if !strings.Contains(text, "INVALID_REQUEST_BODY") {
			t.Error(text)
		}
	}
	for _, body := range []map[string]any{
		{"command": "true", "argv": []string{}}, {"argv": []string{}}, {"command": "true", "uid": 4294967294, "argv": []string{"true"}},
	} {
		status, text := d.call("POST", "/command", body)
		equal(t, status, 400)
		if !strings.Contains(text, "INVALID_REQUEST_BODY") {
			t.Error(text)
		}
	}
}
