// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"maps"
	"net/http"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// makeDirectories creates trees. Mode and ownership go to the last directory of each path, and only if it is new.
func (c *call) makeDirectories() error {
	var items map[string]permission
	if !c.readJSON(&items) {
		return nil
	}
	known := c.service.accounts.get()
	for _, text := range slices.Sorted(maps.Keys(items)) {
		p, err := c.resolve(text)
		if err != nil {
			return err
		}
		owner, err := items[text].ownership(known)
		if err != nil {
			return err
		}
		if err := makeDirectory(p, items[text].Mode, owner); err != nil {
			return err
		}
	}
	return c.done()
}

func makeDirectory(p string, mode Mode, owner ownership) error {
	if p == "/" {
		return nil
	}
	if err := makeParents(p); err != nil {
		return err
	}
	dir, name, err := parentOf(p)
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	err = retry(func() error { return unix.Mkdirat(fdOf(dir), name, 0o755) })
	if is(err, unix.EEXIST) {
		return existingDirectory(fdOf(dir), name, p)
	}
	if err != nil {
		return failed("mkdir", p, err)
	}
	fd, err := openAt(fdOf(dir), name, openDirFlags, 0)
	if err != nil {
		return failed("mkdir", p, err)
	}
	defer closeFD(fd)
	return failed("mkdir", p, applyTo(fd, mode, owner))
}

func existingDirectory(dir int, name, p string) error {
	st, err := statAt(dir, name, 0)
	if err == nil && !st.isDir() {
		return conflict(p, "exists and is not a directory")
	}
	return failed("mkdir", p, err)
}

// list describes the entries of a directory, depth-first, siblings in byte order.
func (c *call) list() error {
	p, err := c.path()
	if err != nil {
		return err
	}
	depth, err := depthOf(c.request.URL.Query().Get("depth"))
	if err != nil {
		return err
	}
	fd, err := openListable(p)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	out := c.beginArray()
	if depth > 0 {
		err = walk(c.request.Context(), fd, visitor{unreadable: listedAlready, enter: func(v visit) (bool, error) {
			info := describe(join(p, v.relative), v.status, v.dir, v.name, out.accounts)
			return v.depth < depth, out.add(info)
		}})
	}
	if err != nil {
		return failed("list", p, err)
	}
	return out.end()
}

// listedAlready passes over a closed directory, which is in the list itself, but not over an entry that would be missing.
func listedAlready(v visit, err error) error {
	if v.status == nil {
		return err
	}
	return nil
}

func depthOf(text string) (int, error) {
	if text == "" {
		return 1, nil
	}
	depth, err := strconv.Atoi(text)
	if err != nil || depth < 0 {
		return 0, badRequest("depth must be a number from 0 on, not %q", text)
	}
	return depth, nil
}

// openListable opens a directory for reading and refuses a link to one: the caller sees that it is a link in the
// listing of its parent, and gets no tree he did not name.
func openListable(p string) (int, error) {
	st, err := lstat(p)
	if err != nil {
		return -1, err
	}
	if !st.isDir() {
		return -1, fail(http.StatusBadRequest, api.CodeInvalidFile, "%s is a %s, not a directory", EscapeName(p), st.typeName())
	}
	fd, err := openAt(unix.AT_FDCWD, p, openDirFlags, 0)
	return fd, failed("open", p, err)
}
