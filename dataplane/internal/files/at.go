// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Everything that changes a tree works on directory descriptors and single names: a directory that somebody swaps for
// a link between two steps is then an error, never a way to another place.

const (
	openDirFlags  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openPathFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
)

// parentOf opens the directory that holds p. Links above the last element are followed, as every program does.
func parentOf(p string) (dir *os.File, name string, err error) {
	dir, err = openDirectory(path.Dir(p))
	return dir, path.Base(p), err
}

func openDirectory(p string) (*os.File, error) {
	fd, err := openAt(unix.AT_FDCWD, p, openPathFlags, 0)
	if err != nil {
		return nil, failed("open", p, err)
	}
	return os.NewFile(uintptr(fd), p), nil
}

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

func fdOf(file *os.File) int { return int(file.Fd()) }

// namesIn lists a directory in byte order. The descriptor must be open for reading.
func namesIn(dir int) ([]string, error) {
	if _, err := unix.Seek(dir, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	var names []string
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(dir, buffer)
		if is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			slices.Sort(names)
			return names, err
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
}

// makeParents creates the missing directories above p.
func makeParents(p string) error {
	parent := path.Dir(p)
	var st unix.Stat_t
	if unix.Stat(parent, &st) == nil {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return conflict(parent, "is not a directory")
		}
		return nil
	}
	return makeDirectories(parent)
}

// makeDirectories is mkdir -p with the default mode.
func makeDirectories(p string) error {
	err := os.MkdirAll(p, 0o755)
	if is(err, unix.ENOTDIR, unix.EEXIST) {
		return conflict(p, "a part of this path is not a directory")
	}
	return failed("mkdir", p, unwrapPath(err))
}
