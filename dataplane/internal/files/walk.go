// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// maxOpenLevels bounds the descriptors of one walk. Above it, the upper levels are closed and found again through
// "..", which counts only when it is the same directory as before.
const maxOpenLevels = 64

var (
	errTreeMoved = errors.New("the tree was moved while it was being walked")
	errStopWalk  = errors.New("walk stopped")
)

// visit is one entry of a walk. dir and name are for *at calls; relative is the path below the root.
type visit struct {
	dir      int
	name     string
	relative string
	depth    int // 1 for the children of the root
	status   *status
}

// visitor decides what happens to the entries of a tree. Links are entries like any other: never followed.
type visitor struct {
	// enter sees every entry, parents before children, siblings in byte order; true descends into a directory.
	enter func(v visit) (bool, error)
	// leave, when set, sees each directory again after its children.
	leave func(v visit) error
	// unreadable, when set, hears of a directory that could not be opened or listed, and of an entry that could not be
	// looked at, which has no status. Nil passes both over.
	unreadable func(v visit, err error) error
	// afterOpen, when set, is called with every directory opened for a descent.
	afterOpen func(v visit, fd int) error
}

type level struct {
	fd     int // -1 while closed
	self   visit
	status *status
	names  []string
}

type walker struct {
	ctx    context.Context
	hooks  visitor
	levels []*level
}

// walk visits everything below the directory root, which must be open for reading. It does not close root.
func walk(ctx context.Context, root int, hooks visitor) error {
	rootStatus, err := statFD(root)
	if err != nil {
		return err
	}
	names, err := namesIn(root)
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	w := &walker{ctx: ctx, hooks: hooks}
	w.levels = append(w.levels, &level{fd: fd, status: rootStatus, names: names})
	defer w.close()
	err = w.run()
	if errors.Is(err, errStopWalk) {
		return nil
	}
	return err
}

func (w *walker) run() error {
	for len(w.levels) > 0 {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		top := w.levels[len(w.levels)-1]
		var err error
		if len(top.names) == 0 {
			err = w.ascend()
		} else {
			name := top.names[0]
			top.names = top.names[1:]
			err = w.step(top, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) step(top *level, name string) error {
	v := visit{dir: top.fd, name: name, relative: name, depth: top.self.depth + 1}
	if top.self.relative != "" {
		v.relative = top.self.relative + "/" + name
	}
	st, err := statAt(top.fd, name, unix.AT_SYMLINK_NOFOLLOW)
	if is(err, unix.ENOENT) {
		return nil // it vanished between listing and looking
	}
	if err != nil {
		return w.skip(v, err)
	}
	v.status = st
	descend, err := w.hooks.enter(v)
	if err != nil || !descend || !st.isDir() {
		return err
	}
	return w.descend(v)
}

func (w *walker) descend(v visit) error {
	fd, err := openAt(v.dir, v.name, openDirFlags, 0)
	if err != nil {
		return w.skip(v, err)
	}
	names, err := w.list(v, fd)
	if err != nil {
		closeFD(fd)
		return w.skip(v, err)
	}
	st, err := statFD(fd)
	if err != nil {
		closeFD(fd)
		return w.skip(v, err)
	}
	w.levels = append(w.levels, &level{fd: fd, self: v, status: st, names: names})
	if hidden := len(w.levels) - 1 - maxOpenLevels; hidden >= 0 && w.levels[hidden].fd >= 0 {
		closeFD(w.levels[hidden].fd)
		w.levels[hidden].fd = -1
	}
	return nil
}

func (w *walker) list(v visit, fd int) ([]string, error) {
	if w.hooks.afterOpen != nil {
		if err := w.hooks.afterOpen(v, fd); err != nil {
			return nil, err
		}
	}
	return namesIn(fd)
}

func (w *walker) skip(v visit, err error) error {
	switch {
	case errors.Is(err, errStopWalk):
		return err
	case w.hooks.unreadable == nil:
		return nil
	}
	return w.hooks.unreadable(v, err)
}

// ascend leaves the innermost directory; its parent is reopened when it had been closed.
func (w *walker) ascend() error {
	last := len(w.levels) - 1
	done := w.levels[last]
	w.levels = w.levels[:last]
	defer closeFD(done.fd)
	if last == 0 {
		return nil
	}
	parent := w.levels[last-1]
	if parent.fd < 0 {
		if err := reopenParent(done.fd, parent); err != nil {
			return err
		}
	}
	if w.hooks.leave == nil {
		return nil
	}
	done.self.dir = parent.fd
	return w.hooks.leave(done.self)
}

func reopenParent(child int, parent *level) error {
	fd, err := openAt(child, "..", openDirFlags, 0)
	if err != nil {
		return err
	}
	st, err := statFD(fd)
	if err != nil || !st.same(parent.status) {
		closeFD(fd)
		return errTreeMoved
	}
	parent.fd = fd
	return nil
}

func (w *walker) close() {
	for _, l := range w.levels {
		if l.fd >= 0 {
			closeFD(l.fd)
		}
	}
}

// closeFD closes a directory opened for reading: nothing can be lost.
func closeFD(fd int) { _ = unix.Close(fd) }

// isVirtual reports whether fd lies on a file system the kernel makes up, which searches and copies of a wider tree
// leave out: it is endless, changes while it is read, and is never what was meant.
func isVirtual(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true
	}
	return false
}
