// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	sealersPerUpload = 8   // fsyncs at a time: the file system settles them together
	maxBatch         = 128 // complete but not yet renamed; bounds the open descriptors
)

// batch collects the files of one upload. An upload of more than maxBatch files is put in place in groups.
type batch struct {
	service *Service
	files   []*staged
	sealing sync.WaitGroup
	slots   chan struct{}
	mu      sync.Mutex
	failure error
}

func newBatch(service *Service) *batch {
	return &batch{service: service, slots: make(chan struct{}, sealersPerUpload)}
}

func (b *batch) stage(target string) (*staged, error) {
	if len(b.files) >= maxBatch {
		if err := b.commit(); err != nil {
			return nil, err
		}
	}
	if err := makeParents(target); err != nil {
		return nil, err
	}
	file, err := b.service.stage(target)
	if err != nil {
		return nil, err
	}
	b.files = append(b.files, file)
	return file, nil
}

// seal makes one complete file durable while the next one is being received.
func (b *batch) seal(file *staged) {
	b.slots <- struct{}{}
	b.sealing.Add(1)
	go func() {
		defer b.sealing.Done()
		err := file.seal()
		b.mu.Lock()
		if b.failure == nil {
			b.failure = err
		}
		b.mu.Unlock()
		<-b.slots
	}()
}

// commit renames all files, in order, and makes the renames durable.
func (b *batch) commit() error {
	b.sealing.Wait()
	if b.failure != nil {
		return b.failure
	}
	for _, file := range b.files {
		if err := file.commit(); err != nil {
			return err
		}
	}
	err := syncDirectories(b.files)
	b.abandon()
	return err
}

// syncDirectories flushes each directory once; those the identity may not read are left to the file system.
func syncDirectories(files []*staged) error {
	done := map[string]bool{}
	for _, file := range files {
		dir := path.Dir(file.target)
		if done[dir] {
			continue
		}
		done[dir] = true
		if err := syncDirectory(file.dir); err != nil {
			return failed("sync", dir, err)
		}
	}
	return nil
}

func syncDirectory(dir *os.File) error {
	fd, err := openAt(fdOf(dir), ".", openDirFlags, 0)
	if err != nil {
		return nil
	}
	defer closeFD(fd)
	err = retry(func() error { return unix.Fsync(fd) })
	if is(err, unix.EINVAL, unix.ENOTSUP) {
		return nil // a file system without durable directories
	}
	return err
}

// abandon removes what is not in place and closes everything.
func (b *batch) abandon() {
	b.sealing.Wait()
	for _, file := range b.files {
		file.abandon()
	}
	b.files = nil
}
