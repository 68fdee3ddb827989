// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package audit

import (
	"errors"
	"fmt"
	"os"
)

// file is a log that is renamed to .1, .2 and so on when it has grown enough.
type file struct {
	path     string
	maxBytes int64
	keep     int
	out      *os.File
	size     int64
}

func openFile(path string, maxBytes int64, keep int) (*file, error) {
	f := &file{path: path, maxBytes: maxBytes, keep: keep}
	return f, f.open()
}

// open leaves an earlier file alone when there is no new one.
func (f *file) open() error {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the audit log cannot be written: %w", err)
	}
	info, err := out.Stat()
	if err != nil {
		return errors.Join(err, out.Close())
	}
	old := f.out
	f.out, f.size = out, info.Size()
	if old != nil {
		return old.Close()
	}
	return nil
}

// write goes on in the file as it is when it cannot be set aside.
func (f *file) write(line []byte) error {
	var failed error
	if f.size > 0 && f.size+int64(len(line)) > f.maxBytes {
		failed = f.rotate()
	}
	n, err := f.out.Write(line)
	f.size += int64(n)
	return errors.Join(failed, err)
}

func (f *file) rotate() error {
	if f.keep == 0 {
		f.size = 0
		return f.out.Truncate(0)
	}
	for i := f.keep - 1; i >= 0; i-- {
		from := f.path
		if i > 0 {
			from = fmt.Sprintf("%s.%d", f.path, i)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.path, i+1)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return f.open()
}

// follow opens the file anew when somebody has moved or removed it.
func (f *file) follow() error {
	there, err := os.Stat(f.path)
	if err == nil {
		if here, failed := f.out.Stat(); failed == nil && os.SameFile(here, there) {
			return nil
		}
	}
	return f.open()
}

func (f *file) close() error { return f.out.Close() }
