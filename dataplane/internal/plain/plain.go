// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package plain opens files whose names belong to the sandbox, whose programs may put anything in
// their place: a pipe that blocks whoever opens it, a device that never ends, a file of any size.
package plain

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// NotRegularError says that a name stands for something that is no regular file.
type NotRegularError struct {
	Name string
}

func (e *NotRegularError) Error() string { return e.Name + " is not a regular file" }

// TooLargeError says that a file has more bytes than anybody should read into memory.
type TooLargeError struct {
	Name  string
	Limit int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has more than %d bytes", e.Name, e.Limit)
}

// Open opens a regular file for reading, links followed. It waits for nobody.
func Open(name string) (*os.File, error) {
	return OpenFile(name, os.O_RDONLY, 0)
}

// OpenFile is os.OpenFile for regular files alone.
func OpenFile(name string, flags int, mode os.FileMode) (*os.File, error) {
	file, err := os.OpenFile(name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &NotRegularError{Name: name}
	}
	if err != nil {
		// It was opened to look at it; there is nothing to lose.
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Read returns the content of a regular file that has at most limit bytes.
func Read(name string, limit int64) ([]byte, error) {
	file, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// The size is not asked for: files of /proc claim to have none, and others may grow meanwhile.
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, &TooLargeError{Name: name, Limit: limit}
	}
	return content, nil
}

// openNull opens the null device at its first use, which is before any program of the sandbox ran
// that could put something else in its place.
var openNull = sync.OnceValues(func() (*os.File, error) {
	return os.OpenFile(os.DevNull, os.O_RDWR, 0)
})

// Null returns the null device, open for reading and writing. The caller closes it.
func Null() (*os.File, error) {
	fd, err := NullFD()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

// NullFD is Null as a bare descriptor.
func NullFD() (int, error) {
	null, err := openNull()
	if err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate the null device: %w", err)
	}
	return fd, nil
}
