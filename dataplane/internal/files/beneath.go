// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"net/http"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// beneath reaches directories below one root, element by element and never through a link, so that no name and no
// swapped directory leads out of the root. The latest directory stays open: entries of a tree come in its order.
type beneath struct {
	root   int
	latest string
	fd     int
}

func newBeneath(root int) *beneath { return &beneath{root: root, fd: -1} }

func (b *beneath) close() {
	if b.fd >= 0 {
		closeFD(b.fd)
		b.fd = -1
	}
}

// dir opens the directory at a relative path that localName has checked; the caller must not close it. With create,
// missing directories are made.
func (b *beneath) dir(relative string, create bool) (int, error) {
	if relative == "." || relative == "" {
		return b.root, nil
	}
	if b.fd >= 0 && b.latest == relative {
		return b.fd, nil
	}
	b.close()
	at := b.root
	for _, element := range strings.Split(relative, "/") {
		next, err := stepInto(at, element, create)
		if at != b.root {
			closeFD(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	b.latest, b.fd = relative, at
	return at, nil
}

func stepInto(at int, element string, create bool) (int, error) {
	fd, err := openAt(at, element, openDirFlags, 0)
	if create && is(err, unix.ENOENT) {
		if err := unix.Mkdirat(at, element, 0o755); err != nil && !is(err, unix.EEXIST) {
			return -1, err
		}
		fd, err = openAt(at, element, openDirFlags, 0)
	}
	return fd, err
}

// localName checks a name that came from outside: relative, and never above its root. The result is clean.
func localName(name string) (string, error) {
	clean := path.Clean(name)
	if name == "" || strings.ContainsRune(name, 0) || path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fail(http.StatusBadRequest, api.CodeInvalidContent, "the name %q leads out of the directory", EscapeName(name))
	}
	return clean, nil
}
