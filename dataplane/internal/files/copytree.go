// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// crossing is a move between two file systems, or out of a layer whose directories cannot be renamed.
type crossing struct {
	from     *os.File
	fromName string
	src      string
	to       *os.File
	toName   string
	dest     string
}

// moveAcross copies under a temporary name, renames that into place and then deletes the source, so that at every
// moment one whole tree exists.
func (s *Service) moveAcross(ctx context.Context, x crossing, st *status) error {
	if st.mountRoot {
		return conflict(x.src, "is a mount point")
	}
	if err := s.journal.begin(x.to.Name()); err != nil {
		return err
	}
	defer s.journal.end()
	temp := s.journal.newName()
	err := copyEntry(ctx, fdOf(x.from), x.fromName, st, fdOf(x.to), temp)
	if err == nil {
		err = renameNew(x.to, temp, x.to, x.toName)
	}
	if err != nil {
		cleanup := removeTree(context.WithoutCancel(ctx), path.Join(x.to.Name(), temp))
		return errors.Join(failed("move", x.src, err), cleanup)
	}
	return removeTree(ctx, x.src)
}

// copyEntry copies a file, link or tree with mode, times and, where permitted, ownership.
func copyEntry(ctx context.Context, from int, name string, st *status, to int, newName string) error {
	if !st.isDir() {
		return copySingle(from, name, st, to, newName)
	}
	source, err := openAt(from, name, openDirFlags, 0)
	if err != nil {
		return err
	}
	defer closeFD(source)
	if err := unix.Mkdirat(to, newName, 0o700); err != nil {
		return err
	}
	target, err := openAt(to, newName, openDirFlags, 0)
	if err != nil {
		return err
	}
	defer closeFD(target)
	tree := &treeCopy{ctx: ctx, below: newBeneath(target)}
	defer tree.below.close()
	if err := walk(ctx, source, visitor{enter: tree.enter, leave: tree.leave, unreadable: tree.unreadable}); err != nil {
		return err
	}
	return copyAttributes(target, st)
}

type treeCopy struct {
	ctx   context.Context
	below *beneath
}

func (t *treeCopy) enter(v visit) (bool, error) {
	dir, err := t.below.dir(path.Dir(v.relative), false)
	if err != nil {
		return false, err
	}
	if v.status.isDir() {
		if v.status.mountRoot {
			return false, conflict(v.relative, "is a mount point")
		}
		return true, unix.Mkdirat(dir, v.name, 0o700)
	}
	return false, copySingle(v.dir, v.name, v.status, dir, v.name)
}

// leave gives a directory its attributes after its children: a read-only one could not have been filled.
func (t *treeCopy) leave(v visit) error {
	dir, err := t.below.dir(v.relative, false)
	if err != nil {
		return err
	}
	return copyAttributes(dir, v.status)
}

func (t *treeCopy) unreadable(_ visit, err error) error { return err }

func copySingle(from int, name string, st *status, to int, newName string) error {
	switch st.kind() {
	case unix.S_IFREG:
		return copyRegular(from, name, st, to, newName)
	case unix.S_IFLNK:
		if err := unix.Symlinkat(readLinkAt(from, name), to, newName); err != nil {
			return err
		}
		return keepLinkOwner(to, newName, st)
	case unix.S_IFIFO:
		return unix.Mknodat(to, newName, st.mode, 0)
	}
	return fail(http.StatusInternalServerError, api.CodeRuntime,
		"%s is a socket or device and cannot be moved to another file system", EscapeName(name))
}

func keepLinkOwner(dir int, name string, st *status) error {
	err := unix.Fchownat(dir, name, int(st.uid), int(st.gid), unix.AT_SYMLINK_NOFOLLOW)
	if is(err, unix.EPERM) {
		return nil
	}
	return err
}

func copyRegular(from int, name string, st *status, to int, newName string) error {
	in, err := openAt(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(in), name)
	defer closeQuietly(source)
	out, err := openAt(to, newName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(out), newName)
	_, err = io.Copy(target, source)
	return errors.Join(err, copyAttributes(out, st), target.Sync(), target.Close())
}

// copyAttributes sets ownership as far as permitted, then mode and times.
func copyAttributes(fd int, st *status) error {
	if err := unix.Fchown(fd, int(st.uid), int(st.gid)); err != nil && !is(err, unix.EPERM) {
		return err
	}
	if err := unix.Fchmod(fd, st.mode&0o7777); err != nil {
		return err
	}
	return setModified(fd, st.modified.UnixNano())
}

func setModified(fd int, nanoseconds int64) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(nanoseconds)}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}
