// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// makeController makes a cgroup-v1 group with a limit; the test is skipped where that cannot be.
func makeController(t *testing.T, controller, file, value string) string {
	t.Helper()
	name := fmt.Sprintf("/sys/fs/cgroup/%s/execd-test-%d-%d", controller, os.Getpid(), cgroupCount.Add(1))
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Skipf("no cgroup-v1 %s controller here: %v", controller, err)
	}
	t.Cleanup(func() {
		eventually(t, 2*time.Second, "the group is empty", func() bool { return os.Remove(name) == nil })
	})
	must(t, os.WriteFile(filepath.Join(name, file), []byte(value), 0))
	return name
}

func TestOutOfMemoryIsNamed(t *testing.T) {
	group := makeController(t, "memory", "memory.limit_in_bytes", "100M")
	enter := `echo $$ > ` + group + `/tasks; mount --bind ` + group + ` /sys/fs/cgroup/memory; exec "$@"`
	d := start(t, options{prefix: []string{"unshare", "--mount", "sh", "-c", enter, "sh"}})
	const eat = "dd if=/dev/zero of=/dev/null bs=300M count=1"
	for _, text := range []string{eat, "echo first; " + eat} {
		r := d.shell(text).failedWith("CommandOutOfMemoryError", "137")
		equal(t, r.last().Reason, "oom")
	}
	d.session(nil).run(eat).failedWith("CommandOutOfMemoryError", "137")
	equal(t, d.shell("kill -9 $$").last().Reason, "signal")
	d.shell("echo alive").succeeded().printed("alive")
}

func TestB075ForkBombLeavesTheDaemonItsReserve(t *testing.T) {
	group := makeController(t, "pids", "pids.max", "40")
	d := start(t, options{cgroup: true, pids: group + "/tasks"})
	bomb := d.run(map[string]any{"command": "f() { f | f & }; f; sleep 3181 & while :; do sleep 3181 & done", "background": true})
	full := func() bool {
		current, err := os.ReadFile(group + "/pids.current")
		must(t, err)
		return strings.TrimSpace(string(current)) == "40"
	}
	eventually(t, 5*time.Second, "the limit is reached", full)
	within(t, 200*time.Millisecond, func() {
		status, _ := d.call("GET", "/ping", nil)
		equal(t, status, 200)
	})
	refused := func() bool {
		failure := d.shell("true").last()
		return failure.Reason == "start" && strings.Contains(failure.Error.Evalue, "process limit")
	}
	eventually(t, 5*time.Second, "the refusal names the limit", refused)
	status, _ := d.call("DELETE", "/command?id="+bomb.id(), nil)
	equal(t, status, 200)
	eventually(t, 8*time.Second, "commands run again", func() bool { return d.shell("true").last().Type == "execution_complete" })
}
