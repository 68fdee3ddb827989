// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// search lists everything but directories below a path whose name fits a pattern. Directories that may not be read
// are passed over, links are reported and not followed.
func (c *call) search() error {
	root, err := c.path()
	if err != nil {
		return err
	}
	pattern := c.request.URL.Query().Get("pattern")
	if pattern == "" {
		pattern = "**"
	}
	glob, err := CompileGlob(UnescapeName(pattern))
	if err != nil {
		return badRequest("%v", err)
	}
	st, err := lstat(root)
	if err != nil {
		return err
	}
	out := c.beginArray()
	if st.isDir() {
		err = c.searchTree(root, glob, out)
	} else if glob.Match(path.Base(root)) {
		err = out.add(describe(root, st, unix.AT_FDCWD, root, out.accounts))
	}
	if err != nil {
		return failed("search", root, err)
	}
	return out.end()
}

func (c *call) searchTree(root string, glob *Glob, out *arrayWriter) error {
	fd, err := openAt(unix.AT_FDCWD, root, openDirFlags, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	hooks := visitor{enter: func(v visit) (bool, error) {
		if v.status.isDir() {
			return true, nil
		}
		if !glob.Match(v.relative) {
			return false, nil
		}
		return false, out.add(describe(join(root, v.relative), v.status, v.dir, v.name, out.accounts))
	}}
	if !isVirtual(fd) {
		hooks.afterOpen = refuseVirtual
	}
	return walk(c.request.Context(), fd, hooks)
}

var errVirtual = errors.New("virtual file system")

// refuseVirtual keeps a walk that began elsewhere out of /proc, /sys and their like.
func refuseVirtual(v visit, fd int) error {
	if v.status.mountRoot && isVirtual(fd) {
		return errVirtual
	}
	return nil
}
