// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package environment

import (
	"fmt"
	"os"
	"strings"
)

// CheckMapped refuses a user or a group that the sandbox's user namespace does not have: no process
// can run as it, and no file can belong to it.
func CheckMapped(uid, gid uint32) error {
	if !UserIsMapped(uid) {
		return fmt.Errorf("uid %d does not exist in this sandbox: its user namespace does not map it", uid)
	}
	if !GroupIsMapped(gid) {
		return fmt.Errorf("gid %d does not exist in this sandbox: its user namespace does not map it", gid)
	}
	return nil
}

// UserIsMapped reports whether the sandbox's user namespace has a user of this number.
func UserIsMapped(uid uint32) bool { return inMap("/proc/self/uid_map", uid) }

// GroupIsMapped is UserIsMapped for groups.
func GroupIsMapped(gid uint32) bool { return inMap("/proc/self/gid_map", gid) }

func inMap(name string, id uint32) bool {
	content, err := os.ReadFile(name)
	if err != nil {
		return true // The kernel has the last word anyway.
	}
	return covers(string(content), id)
}

// covers looks an id up in a table of "inside outside count" lines.
func covers(table string, id uint32) bool {
	for line := range strings.Lines(table) {
		var inside, outside, count uint64
		_, err := fmt.Sscan(line, &inside, &outside, &count)
		if err == nil && uint64(id) >= inside && uint64(id)-inside < count {
			return true
		}
	}
	return false
}
