// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package output

import (
	"errors"
	"fmt"
	"log"
	"os"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/plain"
)

// Stdio are the standard descriptors of a process that is about to start: the child's ends, and
// ours. Standard input is /dev/null unless OpenStdin made it a pipe.
type Stdio struct {
	// Stdout and Stderr are our reading ends; Stderr is nil when it is not separate.
	Stdout *os.File
	Stderr *os.File
	// Stdin is our writing end, or nil.
	Stdin *os.File

	input, out, err int
}

// OpenStdio makes one pipe for both outputs.
func OpenStdio() (*Stdio, error) {
	s := &Stdio{input: -1, out: -1, err: -1}
	input, err := plain.NullFD()
	if err != nil {
		return nil, err
	}
	s.input = input
	s.Stdout, s.out, err = Pipe()
	if err != nil {
		s.CloseChildEnds()
		return nil, err
	}
	return s, nil
}

// SeparateStderr gives standard error a pipe of its own.
func (s *Stdio) SeparateStderr() (err error) {
	s.Stderr, s.err, err = Pipe()
	return err
}

// OpenStdin replaces /dev/null by a pipe that we write to.
func (s *Stdio) OpenStdin() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	closeFD(s.input)
	s.input = ends[0]
	if err := unix.SetNonblock(ends[1], true); err != nil {
		return errors.Join(err, unix.Close(ends[1]))
	}
	s.Stdin = os.NewFile(uintptr(ends[1]), "stdin")
	return nil
}

// Merged lists the child's descriptors with both outputs in one pipe.
func (s *Stdio) Merged() []uintptr {
	return []uintptr{uintptr(s.input), uintptr(s.out), uintptr(s.out)}
}

// Separate lists the child's descriptors after SeparateStderr.
func (s *Stdio) Separate() []uintptr {
	return []uintptr{uintptr(s.input), uintptr(s.out), uintptr(s.err)}
}

// CloseChildEnds closes what the child has its own copies of, or will never get.
func (s *Stdio) CloseChildEnds() {
	for _, fd := range []int{s.input, s.out, s.err} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
	s.input, s.out, s.err = -1, -1, -1
}

// Abandon closes our ends, when there is no child.
func (s *Stdio) Abandon() {
	for _, file := range []*os.File{s.Stdout, s.Stderr, s.Stdin} {
		if file == nil {
			continue
		}
		if err := file.Close(); err != nil {
			log.Printf("event=pipe_not_closed error=%q", err)
		}
	}
}

func closeFD(fd int) {
	if err := unix.Close(fd); err != nil {
		log.Printf("event=descriptor_not_closed error=%q", err)
	}
}
