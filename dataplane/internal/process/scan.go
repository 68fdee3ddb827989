// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"bytes"
	"log"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// table is one look at all processes that /proc shows.
type table map[int]entry

type entry struct {
	parent, group int
	zombie        bool
}

func scanProcesses() table {
	names, err := readNames("/proc")
	if err != nil {
		log.Printf("event=proc_unreadable error=%q", err)
		return nil
	}
	found := make(table, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if e, ok := readEntry(name); ok {
			found[pid] = e
		}
	}
	return found
}

func readNames(dir string) ([]string, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// readEntry parses /proc/<pid>/stat after the command name, which may hold anything but ends at
// the last parenthesis.
func readEntry(pid string) (entry, bool) {
	content, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return entry{}, false
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 3 {
		return entry{}, false
	}
	parent, errParent := strconv.Atoi(string(fields[1]))
	pgrp, errGroup := strconv.Atoi(string(fields[2]))
	zombie := fields[0][0] == 'Z' || fields[0][0] == 'X'
	return entry{parent: parent, group: pgrp, zombie: zombie}, errParent == nil && errGroup == nil
}

// tree finds the living members of a tree: the leader's group, orphans that carry the marker, and
// whatever descends from any of them.
func (t table) tree(id string, leader int) []int {
	isRoot := func(pid int) bool {
		e := t[pid]
		return pid == leader || e.group == leader || (t.isOrphan(e) && hasMarker(pid, id))
	}
	return t.closure(isRoot)
}

// isOrphan also holds for a process whose parent ended while the table was read.
func (t table) isOrphan(e entry) bool {
	_, known := t[e.parent]
	return !known || e.parent == os.Getpid()
}

// closure lists the living processes for which isRoot holds, or that descend from one.
func (t table) closure(isRoot func(pid int) bool) []int {
	verdicts := make(map[int]bool, len(t))
	var members []int
	for pid, e := range t {
		if !e.zombie && pid != os.Getpid() && t.belongs(pid, isRoot, verdicts, 0) {
			members = append(members, pid)
		}
	}
	return members
}

func (t table) belongs(pid int, isRoot func(int) bool, verdicts map[int]bool, depth int) bool {
	if verdict, known := verdicts[pid]; known {
		return verdict
	}
	e, exists := t[pid]
	if !exists || pid == os.Getpid() || depth > len(t) {
		return false
	}
	verdict := isRoot(pid) || t.belongs(e.parent, isRoot, verdicts, depth+1)
	verdicts[pid] = verdict
	return verdict
}

func hasMarker(pid int, id string) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	wanted := []byte(marker + "=" + id)
	for _, variable := range bytes.Split(content, []byte{0}) {
		if bytes.Equal(variable, wanted) {
			return true
		}
	}
	return false
}

// killDescendants repeats until nothing that descends from pid runs, bounded by killBound.
func killDescendants(pid int) {
	deadline := time.Now().Add(killBound)
	for time.Now().Before(deadline) {
		seen := scanProcesses()
		members := seen.closure(func(candidate int) bool { return seen[candidate].parent == pid })
		if len(members) == 0 {
			return
		}
		for _, member := range members {
			ignoreGone(unix.Kill(member, unix.SIGKILL))
		}
		time.Sleep(time.Millisecond)
	}
}
