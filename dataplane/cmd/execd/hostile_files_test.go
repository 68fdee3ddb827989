// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHostileEnvsFile puts other things in the place of the file with the sandbox's variables.
func TestHostileEnvsFile(t *testing.T) {
	d := start(t, options{})
	name := filepath.Join(d.dir, ".env")
	for kind, put := range map[string]func() error{
		"pipe":    func() error { return unix.Mkfifo(name, 0o600) },
		"endless": func() error { return os.Symlink("/dev/zero", name) },
		"folder":  func() error { return os.Mkdir(name, 0o700) },
	} {
		must(t, put())
		within(t, 3*time.Second, func() {
			status, text := d.call("POST", "/command", map[string]any{"command": "echo fi''ne"})
			if status != 200 || !strings.Contains(text, "fine") {
				t.Errorf("%s: %d %s", kind, status, text)
			}
			status, _ = d.call("POST", "/session", map[string]any{})
			equal(t, status, 200)
		})
		must(t, os.Remove(name))
	}
	must(t, errors.Join(os.WriteFile(name, []byte("A=1\n"), 0o600), os.Truncate(name, 1<<40)))
	for _, route := range []string{"/command", "/session", "/pty"} {
		status, text := d.call("POST", route, map[string]any{"command": "true"})
		if status != 400 || !strings.Contains(text, name) {
			t.Errorf("%s: %d %s", route, status, text)
		}
	}
	if size := memory(t, d.pid()); size > 200<<10 {
		t.Errorf("the daemon holds %d KiB", size)
	}
}
