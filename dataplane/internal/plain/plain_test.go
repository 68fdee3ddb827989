// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package plain

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// within fails when reading waits for somebody.
func within(t *testing.T, read func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- read() }()
	select {
	case err := <-result:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("it blocks")
		return nil
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	pipe, device, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "device"), filepath.Join(dir, "file")
	link := filepath.Join(dir, "link")
	err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", device), os.Symlink(file, link),
		os.WriteFile(file, []byte("12345"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, device, dir, "/dev/null"} {
		err := within(t, func() error { _, err := Read(name, 100); return err })
		var irregular *NotRegularError
		if !errors.As(err, &irregular) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if content, err := Read(link, 5); err != nil || string(content) != "12345" {
		t.Errorf("%q %v", content, err)
	}
	var large *TooLargeError
	if _, err := Read(file, 4); !errors.As(err, &large) {
		t.Error(err)
	}
	if _, err := Read(filepath.Join(dir, "none"), 4); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if content, err := Read("/proc/self/status", 1<<20); err != nil || len(content) == 0 {
		t.Errorf("%q %v", content, err)
	}
}

func TestNull(t *testing.T) {
	for range 2 {
		null, err := Null()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := null.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Error(n, err)
		}
		if err := null.Close(); err != nil {
			t.Error(err)
		}
	}
}
