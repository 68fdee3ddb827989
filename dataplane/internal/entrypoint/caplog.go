// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entrypoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// copyStep is how much moves at once when the oldest half is dropped.
const copyStep = 64 << 10

// Log is the sandbox's log file. It drops its oldest half whenever it outgrows the cap.
type Log struct {
	mu     sync.Mutex
	file   *os.File
	size   int64
	cap    int64
	broken bool
}

// OpenLog continues the file. Without a file, output is read and forgotten.
func OpenLog(file *os.File, cap int64) (*Log, error) {
	l := &Log{file: file, cap: cap}
	if file == nil {
		return l, nil
	}
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the log file: %w", err)
	}
	l.size = info.Size()
	return l, nil
}

// Continue goes on in another file, and closes the one before; without a file, output is forgotten.
func (l *Log) Continue(file *os.File) error {
	next, err := OpenLog(file, l.cap)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	earlier := l.file
	l.file, l.size = file, next.size
	if earlier == nil {
		return nil
	}
	return earlier.Close()
}

// Append writes what the entrypoint or a hook printed. A full disk must not stop the sandbox: it is said
// once, and the output is lost until writing works again.
func (l *Log) Append(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	n, err := l.file.Write(data)
	l.size += int64(n)
	if err == nil && l.cap > 0 && l.size > l.cap {
		err = l.dropOldest()
	}
	if err != nil && !l.broken {
		log.Printf("event=entrypoint_log_failed error=%q", err)
	}
	l.broken = err != nil
}

// dropOldest moves the newer half to the front, starting at a line where one starts nearby.
func (l *Log) dropOldest() (err error) {
	flags, err := unix.FcntlInt(l.file.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	// Positioned writes go to the end as long as the descriptor appends.
	if _, err := unix.FcntlInt(l.file.Fd(), unix.F_SETFL, flags&^unix.O_APPEND); err != nil {
		return err
	}
	defer func() {
		_, back := unix.FcntlInt(l.file.Fd(), unix.F_SETFL, flags)
		err = errors.Join(err, back)
	}()
	kept, err := l.moveToFront(l.size - l.cap/2)
	if err != nil {
		return err
	}
	l.size = kept
	return errors.Join(l.file.Truncate(kept), seekEnd(l.file))
}

func seekEnd(file *os.File) error {
	_, err := file.Seek(0, io.SeekEnd)
	return err
}

func (l *Log) moveToFront(from int64) (int64, error) {
	chunk := make([]byte, copyStep)
	var to int64
	for first := true; from < l.size; first = false {
		n, err := l.file.ReadAt(chunk[:min(copyStep, l.size-from)], from)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if n == 0 {
			break
		}
		from += int64(n)
		part := chunk[:n]
		if first {
			part = fromNextLine(part)
		}
		// Not WriteAt, which refuses a file that was opened to append.
		written, err := unix.Pwrite(int(l.file.Fd()), part, to)
		if err != nil || written < len(part) {
			return 0, errors.Join(io.ErrShortWrite, err)
		}
		to += int64(written)
	}
	return to, nil
}

func fromNextLine(data []byte) []byte {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return data[end+1:]
	}
	return data
}
