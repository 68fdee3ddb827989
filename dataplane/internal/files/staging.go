// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"io"
	"log"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// writebackStep is how much is written before the kernel is asked to start moving it to the disk, so that the final
// fsync of a big file finds little left to do.
const writebackStep = 16 << 20

// staged is a file that is complete under a temporary name, or on its way there.
type staged struct {
	journal *journal
	target  string   // final path
	dir     *os.File // directory of the temporary file, kept open: a swap of the path cannot redirect the rename
	name    string   // final name in dir
	temp    string
	file    *os.File
	old     *status // the file that will be replaced
	mode    Mode
	owner   ownership
	inPlace bool // the target cannot be renamed over: its content is rewritten instead
	noted   bool
	written int64
}

// stage makes the temporary file for target. The parents must exist.
func (s *Service) stage(target string) (*staged, error) {
	dir, name, err := parentOf(target)
	if err != nil {
		return nil, err
	}
	st := &staged{journal: s.journal, target: target, dir: dir, name: name}
	st.old, err = existingTarget(fdOf(dir), name, target)
	if err == nil {
		err = st.create()
		if st.old != nil && is(err, unix.EACCES, unix.EPERM, unix.EROFS) && writable(target) {
			err = st.createElsewhere()
		}
	}
	if err != nil {
		st.abandon()
		return nil, failed("create", target, err)
	}
	return st, nil
}

// existingTarget describes the file that will be replaced; nil when there is none. Only a regular file or a link may
// be there. A link is replaced by the file and its target stays untouched; a link to a directory counts as one.
func existingTarget(dir int, name, target string) (*status, error) {
	st, err := statAt(dir, name, unix.AT_SYMLINK_NOFOLLOW)
	if is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if st.isLink() {
		if led, err := statAt(dir, name, 0); err == nil && led.isDir() {
			return nil, conflict(target, "is a link to a directory")
		}
		return nil, nil
	}
	switch {
	case st.isDir():
		return nil, conflict(target, "is a directory")
	case !st.isRegular():
		return nil, conflict(target, "is not a regular file")
	}
	return st, nil
}

func writable(p string) bool {
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	closeFD(fd)
	return true
}

func (st *staged) create() error {
	if err := st.journal.begin(st.dir.Name()); err != nil {
		return err
	}
	st.noted = true
	st.temp = st.journal.newName()
	fd, err := openAt(fdOf(st.dir), st.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		st.release()
		return err
	}
	st.file = os.NewFile(uintptr(fd), path.Join(st.dir.Name(), st.temp))
	return nil
}

// createElsewhere serves a writable file in a directory that is not: the data is collected in the directory for
// temporary files and then written over the old content.
func (st *staged) createElsewhere() error {
	dir, err := openDirectory(os.TempDir())
	if err != nil {
		return err
	}
	closeQuietly(st.dir)
	st.dir, st.inPlace = dir, true
	return st.create()
}

// Write appends data.
func (st *staged) Write(data []byte) (int, error) {
	n, err := st.file.Write(data)
	before := st.written / writebackStep
	st.written += int64(n)
	if st.written/writebackStep != before {
		// A hint: where the file system does not know it, fsync does all the work.
		_ = unix.SyncFileRange(fdOf(st.file), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
	return n, err
}

// apply sets mode and ownership. What the caller left open comes from the file that will be replaced.
func (st *staged) apply(mode Mode, owner ownership) error {
	st.mode, st.owner = mode, owner
	if st.old != nil {
		// Without the privilege the file belongs to whoever wrote it, and that is all right.
		_ = unix.Fchown(fdOf(st.file), int(st.old.uid), int(st.old.gid))
	}
	switch {
	case mode == 0 && st.old != nil:
		mode = ModeOf(st.old.mode)
	case mode == 0:
		mode = 644
	}
	return failed("change permissions of", st.target, applyTo(fdOf(st.file), mode, owner))
}

// seal makes the data durable and closes the temporary file.
func (st *staged) seal() error {
	err := retry(func() error { return unix.Fsync(fdOf(st.file)) })
	if closeErr := st.file.Close(); err == nil {
		err = closeErr
	}
	st.file = nil
	return failed("write", st.target, unwrapPath(err))
}

// commit puts the sealed file in place.
func (st *staged) commit() error {
	if st.inPlace {
		return failed("write", st.target, st.rewrite())
	}
	err := retry(func() error { return unix.Renameat(fdOf(st.dir), st.temp, fdOf(st.dir), st.name) })
	switch {
	case is(err, unix.EBUSY):
		return failed("write", st.target, st.rewrite()) // a mount point, such as /etc/hosts
	case is(err, unix.EISDIR, unix.ENOTEMPTY):
		return conflict(st.target, "is a directory")
	case err != nil:
		return failed("rename", st.target, err)
	}
	st.temp = ""
	st.release()
	return nil
}

// rewrite copies the sealed data over the old content of the target.
func (st *staged) rewrite() error {
	from, err := openAt(fdOf(st.dir), st.temp, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(from), st.temp)
	defer closeQuietly(source)
	to, err := openAt(unix.AT_FDCWD, st.target, unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(to), st.target)
	_, err = io.Copy(file, source)
	err = errors.Join(err, applyTo(to, st.mode, st.owner), file.Sync(), file.Close())
	if err == nil {
		st.discard()
	}
	return err
}

func (st *staged) release() {
	if st.noted {
		st.noted = false
		st.journal.end()
	}
}

func (st *staged) discard() {
	if st.file != nil {
		closeQuietly(st.file)
		st.file = nil
	}
	if st.temp != "" {
		if err := unix.Unlinkat(fdOf(st.dir), st.temp, 0); ignoreMissing(err) != nil {
			log.Printf("event=leftover_not_deleted name=%q error=%q", st.temp, err)
			st.noted = false // so the journal keeps the directory for the next start
		}
		st.temp = ""
	}
	st.release()
}

// abandon removes every trace of a file that will not be put in place. Harmless after commit.
func (st *staged) abandon() {
	st.discard()
	closeQuietly(st.dir)
}
