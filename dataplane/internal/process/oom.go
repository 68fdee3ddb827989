// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"sync"

	"casulo.dev/dataplane/internal/plain"
)

// oomFiles hold the number of processes that the kernel killed for memory in this sandbox: the
// unified hierarchy first, then the memory controller of the older one.
var oomFiles = []string{
	"/sys/fs/cgroup/memory.events",
	"/sys/fs/cgroup/memory/memory.oom_control",
}

// oomCounter reads that number. Without such a file it stays 0 and no end is called out of memory.
type oomCounter struct {
	mu   sync.Mutex
	file *os.File
}

func newOOMCounter() *oomCounter {
	for _, name := range oomFiles {
		if file, err := plain.Open(name); err == nil {
			return &oomCounter{file: file}
		}
	}
	return &oomCounter{}
}

func (c *oomCounter) read() uint64 {
	if c.file == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var buffer [1024]byte
	n, err := c.file.ReadAt(buffer[:], 0)
	if err != nil && err != io.EOF {
		return 0
	}
	return parseOOMKills(buffer[:n])
}

func parseOOMKills(content []byte) uint64 {
	for line := range bytes.Lines(content) {
		fields := bytes.Fields(line)
		if len(fields) == 2 && string(fields[0]) == "oom_kill" {
			count, err := strconv.ParseUint(string(fields[1]), 10, 64)
			if err == nil {
				return count
			}
		}
	}
	return 0
}
