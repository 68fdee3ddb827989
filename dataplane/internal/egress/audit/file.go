// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package audit

import (
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

func (f *file) open() error {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the audit log cannot be written: %w", err)
	}
	info, err := out.Stat()
	if err != nil {
		return err
	}
	f.out, f.size = out, info.Size()
	return nil
}

func (f *file) write(line []byte) error {
	if f.size > 0 && f.size+int64(len(line)) > f.maxBytes {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	n, err := f.out.Write(line)
	f.size += int64(n)
	return err
}

func (f *file) rotate() error {
	if err := f.out.Close(); err != nil {
		return err
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
	if f.keep == 0 {
		if err := os.Truncate(f.path, 0); err != nil {
			return err
		}
	}
	return f.open()
}

func (f *file) close() error { return f.out.Close() }
