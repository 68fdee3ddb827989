// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"net/http"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// removeFiles deletes files and links (the link itself). A directory is refused.
func (c *call) removeFiles() error {
	paths, err := c.resolveAll()
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := removeFile(p); err != nil {
			return err
		}
	}
	return c.done()
}

func removeFile(p string) error {
	dir, name, err := parentOf(p)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	st, err := statAt(fdOf(dir), name, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.isDir() {
		return fail(http.StatusInternalServerError, api.CodeRuntime,
			"%s is a directory: delete it through /directories", EscapeName(p))
	}
	if err == nil {
		err = unix.Unlinkat(fdOf(dir), name, 0)
	}
	if isMissing(err) {
		return nil
	}
	return failed("remove", p, err)
}

// removeDirectories deletes trees.
func (c *call) removeDirectories() error {
	paths, err := c.resolveAll()
	if err != nil {
		return err
	}
	for _, p := range paths {
		if p == "/" {
			return badRequest("the root directory cannot be deleted")
		}
	}
	for _, p := range paths {
		if err := removeTree(c.request.Context(), p); err != nil {
			return err
		}
	}
	return c.done()
}

// removeTree deletes p and everything below. It never leaves the tree: entries are deleted by name in the directory
// that was opened without following links, and mount points are not entered, since what is mounted there belongs to
// somebody else. Like rm -r it goes on after a failure and reports the first one.
func removeTree(ctx context.Context, p string) error {
	dir, name, err := parentOf(p)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	st, err := statAt(fdOf(dir), name, unix.AT_SYMLINK_NOFOLLOW)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return failed("remove", p, err)
	}
	if !st.isDir() {
		return failed("remove", p, ignoreMissing(unix.Unlinkat(fdOf(dir), name, 0)))
	}
	if st.mountRoot {
		return conflict(p, "is a mount point")
	}
	return removeDirAt(ctx, fdOf(dir), name, p)
}

func removeDirAt(ctx context.Context, dir int, name, p string) error {
	r := &remover{root: p}
	// New entries may appear while the tree is being emptied; a few rounds are worth it, a race without end is not.
	for range 4 {
		r.first = nil
		fd, err := openAt(dir, name, openDirFlags, 0)
		if isMissing(err) && !is(err, unix.ENOTDIR) {
			return nil
		}
		if err != nil {
			return failed("remove", p, err)
		}
		err = walk(ctx, fd, r.hooks())
		closeFD(fd)
		if err != nil {
			return failed("remove", p, err)
		}
		err = ignoreMissing(unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
		if err == nil {
			return nil
		}
		r.note(p, err)
		if !is(r.first, unix.ENOTEMPTY, unix.EEXIST) {
			break
		}
	}
	return r.first
}

type remover struct {
	root  string
	first error
}

func (r *remover) hooks() visitor {
	return visitor{enter: r.enter, leave: r.leave, unreadable: r.unreadable}
}

func (r *remover) enter(v visit) (bool, error) {
	if v.status.isDir() {
		if v.status.mountRoot {
			r.note(join(r.root, v.relative), conflict(join(r.root, v.relative), "is a mount point"))
			return false, nil
		}
		return true, nil
	}
	r.note(join(r.root, v.relative), unix.Unlinkat(v.dir, v.name, 0))
	return false, nil
}

func (r *remover) leave(v visit) error {
	r.note(join(r.root, v.relative), unix.Unlinkat(v.dir, v.name, unix.AT_REMOVEDIR))
	return nil
}

// unreadable: an empty directory can go without having been read, and something else in its place goes as what it is.
func (r *remover) unreadable(v visit, cause error) error {
	err := unix.Unlinkat(v.dir, v.name, unix.AT_REMOVEDIR)
	if is(err, unix.ENOTDIR) {
		err = unix.Unlinkat(v.dir, v.name, 0)
	}
	if is(err, unix.ENOTEMPTY, unix.EEXIST) {
		err = cause
	}
	r.note(join(r.root, v.relative), err)
	return nil
}

func (r *remover) note(p string, err error) {
	if r.first == nil && ignoreMissing(err) != nil {
		r.first = failed("remove", p, err)
	}
}

func ignoreMissing(err error) error {
	if is(err, unix.ENOENT) {
		return nil
	}
	return err
}
