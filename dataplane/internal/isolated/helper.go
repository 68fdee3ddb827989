// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// helperName is the first argument of the daemon's program when it only mounts a session's /proc.
const helperName = "execd-isolated-proc"

// How a path below /proc is kept from a session, as it is from the sandbox.
const (
	hideFile      = "file:"
	hideDirectory = "directory:"
	forbidWriting = "readonly:"
)

// IsHelper reports whether this process was started to mount a session's /proc.
func IsHelper(arguments []string) bool { return len(arguments) > 0 && arguments[0] == helperName }

// RunHelper mounts /proc and hides in it what the arguments say. It returns the exit status.
func RunHelper(arguments []string) int {
	err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	for _, argument := range arguments[1:] {
		if err == nil {
			err = hide(argument)
		}
	}
	if err != nil {
		fmt.Fprint(os.Stderr, err)
		return 1
	}
	return 0
}

// hide repeats one mount of the sandbox's /proc. What is not there in this one needs no hiding.
func hide(argument string) error {
	kind, path, _ := strings.Cut(argument, ":")
	var err error
	switch kind + ":" {
	case hideFile:
		err = bind(os.DevNull, path)
	case hideDirectory:
		err = tmpfs(path, "000", unix.MS_RDONLY)
	case forbidWriting:
		if err = bind(path, path); err == nil {
			err = makeReadOnly(path)
		}
	default:
		return fmt.Errorf("%q is no order", argument)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// mountsBelow lists what is mounted over parts of a process file system, as orders for `hide`.
func mountsBelow(point string) ([]string, error) {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer table.Close()
	var orders []string
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		if order := orderOf(lines.Text(), point); order != "" {
			orders = append(orders, order)
		}
	}
	return orders, lines.Err()
}

// orderOf reads one line: number, parent, device, root, mount point, options, fields up to a dash, kind.
func orderOf(line, point string) string {
	before, after, _ := strings.Cut(line, " - ")
	fields, kind := strings.Fields(before), strings.Fields(after)
	if len(fields) < 5 || len(kind) == 0 || !strings.HasPrefix(fields[4], point+"/") {
		return ""
	}
	path := fields[4]
	if kind[0] == "proc" {
		return forbidWriting + path
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return hideDirectory + path
	}
	return hideFile + path
}
