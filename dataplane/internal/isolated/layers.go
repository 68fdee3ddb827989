// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/files"
)

// layer is what a session wrote over one directory of the sandbox.
type layer struct {
	path   string // as the session knows the directory
	target string // the directory itself
	upper  *os.Root
}

// opaque marks a directory that hides everything below it in the sandbox.
const opaque = "user.overlay.opaque"

func (l *layer) close() error { return l.upper.Close() }

func closeLayers(layers []*layer) error {
	var failures []error
	for _, layer := range layers {
		failures = append(failures, layer.close())
	}
	return errors.Join(failures...)
}

// Kinds of changes.
const (
	changeAdded    = "added"
	changeModified = "modified"
	changeDeleted  = "deleted"
)

// change is one difference between the session's view and the sandbox's.
type change struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Type string `json:"type"`
	Size int64  `json:"size"`

	name  string // relative to the layer
	layer *layer
}

// diff lists what differs, parents before children. What was written but equals the sandbox's is no change.
func (l *layer) diff() ([]change, error) {
	lower, err := os.OpenRoot(l.target)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	var changes []change
	err = fs.WalkDir(l.upper.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		found, err := l.compare(lower, name)
		changes = append(changes, found...)
		return err
	})
	return changes, err
}

// compare says how one entry that the session wrote differs from what the sandbox has there.
func (l *layer) compare(lower *os.Root, name string) ([]change, error) {
	now, err := l.upper.Lstat(name)
	if err != nil {
		return nil, err
	}
	before, err := lower.Lstat(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, err
	}
	missing := err != nil
	switch {
	case isWhiteout(now) && missing:
		return nil, nil
	case isWhiteout(now):
		return []change{l.change(name, changeDeleted, before)}, nil
	case missing:
		return []change{l.change(name, changeAdded, now)}, nil
	case now.IsDir() && before.IsDir():
		return l.compareDirectory(lower, name, now, before)
	}
	equal, err := l.equal(lower, name, now, before)
	if err != nil || equal {
		return nil, err
	}
	return []change{l.change(name, changeModified, now)}, nil
}

// compareDirectory finds what an opaque directory hides, besides a change of the directory itself.
func (l *layer) compareDirectory(lower *os.Root, name string, now, before fs.FileInfo) ([]change, error) {
	var changes []change
	if !sameRights(now, before) {
		changes = append(changes, l.change(name, changeModified, now))
	}
	if !l.isOpaque(name) {
		return changes, nil
	}
	entries, err := fs.ReadDir(lower.FS(), name)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		hidden := path.Join(name, entry.Name())
		if _, err := l.upper.Lstat(hidden); err == nil {
			continue
		}
		info, err := lower.Lstat(hidden)
		if err != nil {
			return nil, err
		}
		changes = append(changes, l.change(hidden, changeDeleted, info))
	}
	return changes, nil
}

func (l *layer) change(name, kind string, info fs.FileInfo) change {
	made := change{
		Path: files.EscapeName(path.Join(l.path, name)), Kind: kind, Type: "other", name: name, layer: l,
	}
	switch info.Mode().Type() {
	case 0:
		made.Type, made.Size = "file", info.Size()
	case fs.ModeDir:
		made.Type = "directory"
	case fs.ModeSymlink:
		made.Type = "symlink"
	}
	return made
}

func isWhiteout(info fs.FileInfo) bool {
	return info.Mode()&fs.ModeCharDevice != 0 && info.Sys().(*syscall.Stat_t).Rdev == 0
}

func (l *layer) isOpaque(name string) bool {
	file, err := open(l.upper, name)
	if err != nil {
		return false
	}
	defer file.Close()
	var value [1]byte
	n, err := unix.Fgetxattr(int(file.Fd()), opaque, value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// open never waits, whatever took the place of a file meanwhile, and refuses what is neither file nor directory.
func open(root *os.Root, name string) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = errors.New(name + " is not a file any more")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func sameRights(a, b fs.FileInfo) bool {
	one, other := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return one.Mode == other.Mode && one.Uid == other.Uid && one.Gid == other.Gid
}

func (l *layer) equal(lower *os.Root, name string, now, before fs.FileInfo) (bool, error) {
	switch {
	case !sameRights(now, before):
		return false, nil
	case now.Mode().IsRegular():
		if now.Size() != before.Size() {
			return false, nil
		}
		return sameBytes(l.upper, lower, name)
	case now.Mode()&fs.ModeSymlink != 0:
		one, err1 := l.upper.Readlink(name)
		other, err2 := lower.Readlink(name)
		return one == other, errors.Join(err1, err2)
	}
	return now.Sys().(*syscall.Stat_t).Rdev == before.Sys().(*syscall.Stat_t).Rdev, nil
}

func sameBytes(a, b *os.Root, name string) (bool, error) {
	one, err := open(a, name)
	if err != nil {
		return false, err
	}
	defer one.Close()
	other, err := open(b, name)
	if err != nil {
		return false, err
	}
	defer other.Close()
	left, right := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, errOne := io.ReadFull(one, left)
		m, errOther := io.ReadFull(other, right)
		if n != m || !bytes.Equal(left[:n], right[:m]) {
			return false, nil
		}
		if errOne != nil || errOther != nil {
			return true, unexpected(errOne, errOther)
		}
	}
}

// unexpected drops the two ways in which a read to the end says that it got there.
func unexpected(failures ...error) error {
	var rest []error
	for _, err := range failures {
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			rest = append(rest, err)
		}
	}
	return errors.Join(rest...)
}
