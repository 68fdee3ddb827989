// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package output owns what commands print: it drains their pipes, keeps the bytes in a bounded log
// that spills to disk, and lets readers follow or re-read it without ever losing bytes silently.
package output

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// blockSize is the unit in which bytes move to disk.
const blockSize = 64 << 10

// pageSize is the unit in which a filesystem charges for a partly used block.
const pageSize = 4 << 10

// ErrFull says that the store has no room; the caller decides what to give up.
var ErrFull = errors.New("the output store is full")

// Store is one unlinked file that all logs of the daemon spill to, cut into blocks.
type Store struct {
	// Pressure receives a token when room gets scarce: someone should drop old logs.
	Pressure chan struct{}

	dirs []string
	max  int64

	mu     sync.Mutex
	file   *os.File
	broken error
	used   int64
	next   int64
	free   []int64

	writes  int
	crowded bool
}

// block is a stored piece of at most blockSize bytes.
type block struct {
	slot int64
	size int
}

// NewStore makes a store of at most max bytes in the first of dirs that can hold it. Nothing
// touches the disk before the first byte is spilled.
func NewStore(dirs []string, max int64) *Store {
	return &Store{dirs: dirs, max: max, Pressure: make(chan struct{}, 1)}
}

// write keeps a copy of data, which is at most a block long.
func (s *Store) write(data []byte) (block, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return block{}, err
	}
	size := charged(len(data))
	if s.used+size > s.max*3/4 {
		s.press()
	}
	if s.used+size > s.max || s.crowdsDisk() {
		s.press()
		return block{}, ErrFull
	}
	slot := s.slot()
	if _, err := s.file.WriteAt(data, slot*blockSize); err != nil {
		s.free = append(s.free, slot)
		s.press()
		return block{}, fmt.Errorf("spill output: %w", err)
	}
	s.used += size
	return block{slot: slot, size: len(data)}, nil
}

// The disk is the user's too: the store leaves a twentieth of it free, looked at every few blocks.
const (
	reserveShare = 20
	lookEvery    = 16
)

func (s *Store) crowdsDisk() bool {
	s.writes++
	if s.writes%lookEvery != 1 {
		return s.crowded
	}
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(s.file.Fd()), &stat); err != nil {
		return false
	}
	s.crowded = stat.Bavail < stat.Blocks/reserveShare
	return s.crowded
}

// read fills p from within a block.
func (s *Store) read(b block, offset int, p []byte) error {
	s.mu.Lock()
	file := s.file
	s.mu.Unlock()
	if _, err := file.ReadAt(p, b.slot*blockSize+int64(offset)); err != nil {
		return fmt.Errorf("read spilled output: %w", err)
	}
	return nil
}

// release gives a block's room back to the disk.
func (s *Store) release(b block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= charged(b.size)
	s.free = append(s.free, b.slot)
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	err := unix.Fallocate(int(s.file.Fd()), mode, b.slot*blockSize, blockSize)
	if err != nil && err != unix.EOPNOTSUPP && err != unix.ENOSYS {
		log.Printf("event=output_hole_not_punched error=%q", err)
	}
	if s.used == 0 && s.file.Truncate(0) == nil {
		s.next, s.free = 0, nil
	}
}

// Used is how many bytes of disk the store holds.
func (s *Store) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Max is how many it may hold.
func (s *Store) Max() int64 { return s.max }

func (s *Store) press() {
	select {
	case s.Pressure <- struct{}{}:
	default:
	}
}

func (s *Store) slot() int64 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next++
	return s.next - 1
}

// charged is what size bytes cost on disk.
func charged(size int) int64 {
	return int64(size+pageSize-1) / pageSize * pageSize
}

// open finds a place for the file. Memory-backed filesystems come last: they would only move the
// bytes from the daemon's memory to the sandbox's.
func (s *Store) open() error {
	if s.file != nil || s.broken != nil {
		return s.broken
	}
	failures := []error{errors.New("no directory can hold the output store")}
	for _, acceptMemory := range []bool{false, true} {
		for _, dir := range s.dirs {
			if isMemory(dir) != acceptMemory {
				continue
			}
			file, err := openUnlinked(dir)
			if err == nil {
				s.file = file
				return nil
			}
			failures = append(failures, err)
		}
	}
	s.broken = errors.Join(failures...)
	log.Printf("event=output_store_unavailable error=%q", s.broken)
	return s.broken
}

func isMemory(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && stat.Type == unix.TMPFS_MAGIC
}

// openUnlinked makes a file without a name, or one that loses its name at once.
func openUnlinked(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "output")), nil
	}
	file, err := os.CreateTemp(dir, ".output-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
