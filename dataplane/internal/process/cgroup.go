// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"bytes"
	"errors"
	"log"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// spareGroups is how many empty cgroups are kept: making one costs more than starting a process.
const spareGroups = 8

// groups hands out one cgroup per tree, below the delegated directory.
type groups struct {
	mu       sync.Mutex
	root     *os.File
	next     int
	spare    []*group
	lingers  []*group
	sweeping bool
}

// group is one cgroup directory.
type group struct {
	name string
	fd   int
	// spent is true after a kill: some kernels kill whatever is born into such a group later on.
	spent atomic.Bool
}

func newGroups(root *os.File) *groups { return &groups{root: root} }

// take returns the tree for a new process; its group is nil where the host offers none.
func (g *groups) take(id string) *Tree {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.root == nil {
		return &Tree{id: id}
	}
	if n := len(g.spare); n > 0 {
		taken := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return &Tree{id: id, group: taken}
	}
	made, err := g.create()
	if err != nil {
		log.Printf("event=cgroup_not_made error=%q", err)
		return &Tree{id: id}
	}
	return &Tree{id: id, group: made}
}

func (g *groups) create() (*group, error) {
	g.next++
	name := "command-" + strconv.Itoa(g.next)
	if err := unix.Mkdirat(int(g.root.Fd()), name, 0o755); err != nil && err != unix.EEXIST {
		return nil, err
	}
	fd, err := unix.Openat(int(g.root.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &group{name: name, fd: fd}, nil
}

// give takes a tree back. A group with survivors is kept aside until they are gone.
func (g *groups) give(t *Tree) {
	if t.group == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.recycle(t.group) {
		g.lingers = append(g.lingers, t.group)
	}
}

// sweepDelay gathers the orphans of a moment: a look at all groups serves them together.
const sweepDelay = 50 * time.Millisecond

// sweep looks again, a little later, at the groups that had survivors; called when an orphan was reaped.
func (g *groups) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lingers) > 0 && !g.sweeping {
		g.sweeping = true
		time.AfterFunc(sweepDelay, g.settle)
	}
}

func (g *groups) settle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweeping = false
	g.lingers = slices.DeleteFunc(g.lingers, g.recycle)
}

// recycle keeps an empty group for the next tree, or removes it. It reports false for one in use.
func (g *groups) recycle(returned *group) bool {
	switch {
	case returned.populated():
		return false
	case len(g.spare) < spareGroups && !returned.spent.Load():
		g.spare = append(g.spare, returned)
	default:
		g.remove(returned)
	}
	return true
}

func (g *groups) remove(gone *group) {
	if g.root == nil {
		return
	}
	if err := unix.Unlinkat(int(g.root.Fd()), gone.name, unix.AT_REMOVEDIR); err != nil {
		log.Printf("event=cgroup_not_removed name=%s error=%q", gone.name, err)
	}
	if err := unix.Close(gone.fd); err != nil {
		log.Printf("event=cgroup_not_closed name=%s error=%q", gone.name, err)
	}
}

// disable stops using cgroups after the host refused to fork into one.
func (g *groups) disable(refused *group, cause error) {
	log.Printf("event=cgroup_refused fallback=process_groups error=%q", cause)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, unused := range append(g.spare, refused) {
		g.remove(unused)
	}
	g.root, g.spare = nil, nil
}

func mayBeCgroupRefusal(err error) bool {
	switch err {
	case unix.EACCES, unix.EPERM, unix.ENOSYS, unix.EBUSY, unix.EOPNOTSUPP, unix.ENOENT, unix.ENODEV:
		return true
	}
	return false
}

func (g *group) populated() bool {
	var buffer [256]byte
	content, err := g.read("cgroup.events", buffer[:])
	return err == nil && bytes.Contains(content, []byte("populated 1"))
}

// kill reports whether the kernel took the order; older ones have no such file.
func (g *group) kill() bool {
	g.spent.Store(true)
	fd, err := unix.Openat(g.fd, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_, err = unix.Write(fd, []byte("1"))
	return errors.Join(err, unix.Close(fd)) == nil
}

func (g *group) processes() []int {
	content, err := g.read("cgroup.procs", make([]byte, 64<<10))
	if err != nil {
		return nil
	}
	var pids []int
	for _, line := range bytes.Fields(content) {
		// Pid 0 stands for a process outside of our pid namespace.
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (g *group) read(name string, buffer []byte) ([]byte, error) {
	fd, err := unix.Openat(g.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, buffer)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, err
	}
	return buffer[:n], nil
}
