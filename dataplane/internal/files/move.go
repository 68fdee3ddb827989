// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

type moveItem struct {
	Src  string `json:"src"`
	Dest string `json:"dest"`
}

func (c *call) move() error {
	var items []moveItem
	if !c.readJSON(&items) {
		return nil
	}
	for _, item := range items {
		src, err := c.resolve(item.Src)
		if err != nil {
			return err
		}
		dest, err := c.resolve(item.Dest)
		if err != nil {
			return err
		}
		if err := c.service.moveEntry(c.request.Context(), src, dest); err != nil {
			return err
		}
	}
	return c.done()
}

// moveEntry renames src to dest, which must not exist. Between file systems it copies and then deletes.
func (s *Service) moveEntry(ctx context.Context, src, dest string) error {
	st, err := lstat(src)
	if err != nil {
		return err
	}
	if dest == src || strings.HasPrefix(dest, src+"/") {
		return fail(http.StatusInternalServerError, api.CodeRuntime, "%s cannot be moved to %s: into itself",
			EscapeName(src), EscapeName(dest))
	}
	if err := makeParents(dest); err != nil {
		return err
	}
	from, fromName, err := parentOf(src)
	if err != nil {
		return err
	}
	defer closeQuietly(from)
	to, toName, err := parentOf(dest)
	if err != nil {
		return err
	}
	defer closeQuietly(to)
	err = renameNew(from, fromName, to, toName)
	switch {
	case is(err, unix.EEXIST, unix.ENOTEMPTY):
		return fail(http.StatusInternalServerError, api.CodeRuntime, "%s already exists", EscapeName(dest))
	case is(err, unix.EXDEV):
		return s.moveAcross(ctx, crossing{from, fromName, src, to, toName, dest}, st)
	}
	return failed("move", src, err)
}

// renameNew renames without ever replacing. File systems that do not know the flag get a check before the rename.
func renameNew(from *os.File, fromName string, to *os.File, toName string) error {
	err := unix.Renameat2(fdOf(from), fromName, fdOf(to), toName, unix.RENAME_NOREPLACE)
	if !is(err, unix.EINVAL, unix.ENOSYS) {
		return err
	}
	if _, statErr := statAt(fdOf(to), toName, unix.AT_SYMLINK_NOFOLLOW); statErr == nil {
		return unix.EEXIST
	}
	return unix.Renameat(fdOf(from), fromName, fdOf(to), toName)
}
