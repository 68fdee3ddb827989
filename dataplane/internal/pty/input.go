// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"fmt"
	"io"
	"sync"
)

// inputLimit is how much input may wait for a program that does not read.
const inputLimit = 4 << 20

// inputStep is how much is written at once.
const inputStep = 32 << 10

// input takes what clients type, so that a program that does not read holds up no connection: pings,
// signals and sizes are heard all the same.
type input struct {
	to   io.Writer
	wake chan struct{}

	mu      sync.Mutex
	waiting []byte
	writing int
	failure error
	report  func(error) // tells whoever typed last
}

func newInput(to io.Writer) *input { return &input{to: to, wake: make(chan struct{}, 1)} }

// add takes all of the data or nothing. Report hears, later and at most once, that writing failed.
func (in *input) add(data []byte, report func(error)) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.failure != nil {
		return in.failure
	}
	if kept := len(in.waiting) + in.writing; kept+len(data) > inputLimit {
		return fmt.Errorf("the program does not read: %d bytes wait for it, and these %d are dropped", kept, len(data))
	}
	in.waiting, in.report = append(in.waiting, data...), report
	select {
	case in.wake <- struct{}{}:
	default:
		// It is awake already.
	}
	return nil
}

// run writes until the program ended, or until the first failure.
func (in *input) run(ended <-chan struct{}) {
	step := make([]byte, inputStep)
	for {
		for n := in.take(step); n > 0; n = in.take(step) {
			if _, err := in.to.Write(step[:n]); err != nil {
				in.fail(fmt.Errorf("write to the shell: %w", err), isClosed(ended))
				return
			}
		}
		select {
		case <-in.wake:
		case <-ended:
			return
		}
	}
}

// take moves the next bytes into step; 0 means that nothing waits.
func (in *input) take(step []byte) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := copy(step, in.waiting)
	in.writing, in.waiting = n, in.waiting[n:]
	if len(in.waiting) == 0 {
		in.waiting = nil
	}
	return n
}

// fail refuses all further input. After the program's end its unread input is no news to anybody.
func (in *input) fail(err error, ended bool) {
	in.mu.Lock()
	in.failure, in.waiting, in.writing = err, nil, 0
	report := in.report
	in.mu.Unlock()
	if !ended {
		report(err)
	}
}
