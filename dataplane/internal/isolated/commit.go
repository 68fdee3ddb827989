// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"casulo.dev/dataplane/internal/api"
)

// partPrefix marks a copy that is not complete yet.
const partPrefix = ".casulo-part-"

// commit makes changes of one layer true in the sandbox: deletions, then the rest, parents first. It
// stays below the layer's directory whatever links the sandbox put there meanwhile. Each file is
// replaced as a whole; a commit that fails half-way can be repeated.
func (l *layer) commit(changes []change) error {
	lower, err := os.OpenRoot(l.target)
	if err != nil {
		return err
	}
	defer lower.Close()
	for _, c := range changes {
		if c.Kind != changeDeleted {
			continue
		}
		if err := lower.RemoveAll(c.name); err != nil {
			return fmt.Errorf("delete %s: %w", c.Path, err)
		}
	}
	for _, c := range changes {
		if c.Kind == changeDeleted {
			continue
		}
		if err := l.apply(lower, c.name); err != nil {
			return fmt.Errorf("write %s: %w", c.Path, err)
		}
	}
	return nil
}

func (l *layer) apply(lower *os.Root, name string) error {
	info, err := l.upper.Lstat(name)
	if err != nil {
		return err
	}
	if before, err := lower.Lstat(name); err == nil && before.IsDir() != info.IsDir() {
		if err := lower.RemoveAll(name); err != nil {
			return err
		}
	}
	switch {
	case info.IsDir():
		if err := lower.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return imitate(lower, name, info)
	case info.Mode().IsRegular():
		return l.replace(lower, name, info, l.copyFile)
	case info.Mode()&fs.ModeSymlink != 0:
		return l.replace(lower, name, info, l.copyLink)
	}
	return errors.New("only files, directories and symbolic links can be committed")
}

// replace makes a complete copy beside the target and renames it over that.
func (l *layer) replace(lower *os.Root, name string, info fs.FileInfo, make func(*os.Root, string, string) error) error {
	part := path.Join(path.Dir(name), partPrefix+api.NewID())
	err := make(lower, name, part)
	if err == nil {
		err = imitate(lower, part, info)
	}
	if err == nil {
		err = lower.Rename(part, name)
	}
	if err != nil {
		// The reason is what matters; that the part may be missing is no news.
		_ = lower.Remove(part)
	}
	return err
}

func (l *layer) copyFile(lower *os.Root, name, part string) error {
	source, err := open(l.upper, name)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := lower.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

func (l *layer) copyLink(lower *os.Root, name, part string) error {
	target, err := l.upper.Readlink(name)
	if err != nil {
		return err
	}
	return lower.Symlink(target, part)
}

// imitate takes over owner, mode and time.
func imitate(lower *os.Root, name string, info fs.FileInfo) error {
	owner := info.Sys().(*syscall.Stat_t)
	if err := lower.Lchown(name, int(owner.Uid), int(owner.Gid)); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	if err := lower.Chmod(name, info.Mode()); err != nil {
		return err
	}
	return lower.Chtimes(name, info.ModTime(), info.ModTime())
}
