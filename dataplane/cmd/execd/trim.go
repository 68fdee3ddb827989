// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"bufio"
	"fmt"
	"log"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/guest"
)

// idleDelay is how long nothing has to happen until memory is given back.
const idleDelay = time.Second

// trimmer gives memory back when no request is open: a host runs many idle daemons.
type trimmer struct {
	next  http.Handler
	open  atomic.Int64
	timer *time.Timer
}

// tended is the handler with the trimmer around it, but in a virtual machine: its memory is its own in any case,
// and what is dropped there has to be found again by every one that is made from it.
func tended(next http.Handler) http.Handler {
	if guest.IsInit(os.Args) {
		return next
	}
	return newTrimmer(next)
}

func newTrimmer(next http.Handler) *trimmer {
	t := &trimmer{next: next}
	t.timer = time.AfterFunc(idleDelay, t.trim)
	return t
}

// ServeHTTP implements http.Handler.
func (t *trimmer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.open.Add(1)
	defer func() {
		if t.open.Add(-1) == 0 {
			t.timer.Reset(idleDelay)
		}
	}()
	t.next.ServeHTTP(w, r)
}

func (t *trimmer) trim() {
	if t.open.Load() > 0 {
		return
	}
	debug.FreeOSMemory()
	if err := dropProgramPages(); err != nil {
		log.Printf("event=pages_not_dropped error=%q", err)
	}
}

// dropProgramPages unmaps the pages of our own program that were touched. They stay in the page
// cache, which all daemons of a host share, and come back at the next use.
func dropProgramPages() error {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	program := ""
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			continue
		}
		if program == "" {
			// The program itself is mapped lowest.
			program = fields[5]
		}
		// Only pages that nobody can have written to may be dropped.
		if fields[5] == program && (fields[1] == "r-xp" || fields[1] == "r--p") {
			if err := dropRange(fields[0]); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

func dropRange(text string) error {
	var start, end uintptr
	if _, err := fmt.Sscanf(text, "%x-%x", &start, &end); err != nil {
		return fmt.Errorf("parse the mapping %q: %w", text, err)
	}
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
	if errno != 0 {
		return fmt.Errorf("drop the mapping %s: %w", text, errno)
	}
	return nil
}
