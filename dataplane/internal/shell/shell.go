// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package shell owns living shells that execute texts for the daemon, one after the other: the channels
// to such a process, and how the daemon learns that a text has ended, whatever the text did to the shell.
package shell

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/plain"
	"casulo.dev/dataplane/internal/process"
)

// Begun is the line that a shell writes to its status channel before it executes a text. The line after
// it is the exit status. Without it the text was not executed.
const Begun = "+"

// Shell is one living shell. Its holder hands it one text at a time.
type Shell struct {
	Process *process.Process
	Text    *os.File // what it executes, in memory
	orders  *os.File // its standard input: the lines it executes
	printed *output.Pump
	said    *output.Pump
	results chan int
	// probed is true while an empty line waits that the shell reads only when it is done.
	probed bool

	mu     sync.Mutex
	sink   *output.Log // where its output goes now; nil means nowhere
	report []byte      // an unfinished line of the status channel
	begun  bool
}

// Ends are the descriptors that only the child needs.
type Ends struct {
	Orders *os.File // its standard input
	Print  *os.File // where texts print
	Status *os.File // where it says how they ended
	Null   *os.File
}

// Start makes the channels and starts a process. The spec is made of the child's ends and the text's file.
// Texts may open /dev/stdout by name if owner owns it.
func Start(
	supervisor *process.Supervisor, owner *syscall.Credential, spec func(ends Ends, text *os.File) process.Spec,
) (*Shell, error) {
	sh, ends, printed, said, err := connect(owner)
	if err != nil {
		return nil, err
	}
	defer ends.close()
	if sh.Process, err = supervisor.Start(spec(ends, sh.Text)); err != nil {
		closeLogged(sh.orders, sh.Text, printed, said)
		return nil, err
	}
	if sh.printed, err = output.StartPump(printed, sh.print); err != nil {
		return nil, err
	}
	if sh.said, err = output.StartPump(said, sh.hear); err != nil {
		return nil, err
	}
	return sh, nil
}

func connect(owner *syscall.Credential) (sh *Shell, ends Ends, printed, said *os.File, err error) {
	text, err1 := MemoryFile("text")
	orders, toShell, err2 := os.Pipe()
	printed, printEnd, err3 := output.Pipe()
	said, statusEnd, err4 := output.Pipe()
	null, err5 := plain.Null()
	ends = Ends{orders, asFile(printEnd, err3), asFile(statusEnd, err4), null}
	if err = errors.Join(err1, err2, err3, err4, err5); err != nil {
		ends.close()
		closeLogged(text, toShell, printed, said)
		return nil, Ends{}, nil, nil, err
	}
	if owner != nil {
		// Programs that open /dev/stdout by name need to own it; without, only those fail.
		if err := unix.Fchown(printEnd, int(owner.Uid), int(owner.Gid)); err != nil {
			log.Printf("event=shell_output_not_owned error=%q", err)
		}
	}
	return &Shell{Text: text, orders: toShell, results: make(chan int, 1)}, ends, printed, said, nil
}

func asFile(descriptor int, err error) *os.File {
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(descriptor), "shell")
}

func (e Ends) close() { closeLogged(e.Orders, e.Print, e.Status, e.Null) }

// Hand gives the shell a text, and the line that makes it execute that. The text stands in memory as given.
func (sh *Shell) Hand(text, line string) error {
	if err := Rewrite(sh.Text, text); err != nil {
		return err
	}
	sh.mu.Lock()
	sh.begun, sh.probed = false, false
	sh.mu.Unlock()
	return sh.Order(line)
}

// Order writes a line. A shell that is gone is no error here: its end is seen anyway.
func (sh *Shell) Order(line string) error {
	_, err := sh.orders.WriteString(line)
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// Direct says where goes what the shell and everything below it prints. Between runs nobody wants it.
func (sh *Shell) Direct(sink *output.Log) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sink = sink
}

// Drain delivers what was printed until now.
func (sh *Shell) Drain() { sh.printed.Drain() }

func (sh *Shell) print(data []byte) {
	sh.mu.Lock()
	sink := sh.sink
	sh.mu.Unlock()
	if sink != nil {
		sink.Append(output.Stdout, data)
	}
}

// Alive reports whether the shell can take another text.
func (sh *Shell) Alive() bool {
	select {
	case <-sh.Process.Done():
		return false
	default:
		return true
	}
}

// End stops the shell and everything it started, with grace for cleaning up.
func (sh *Shell) End(grace time.Duration) {
	sh.Process.SignalTree(syscall.SIGTERM)
	sh.Process.SignalTree(syscall.SIGCONT)
	if !sh.Process.Tree.WaitEmpty(grace) {
		sh.Process.Tree.Kill()
	}
	<-sh.Process.Done()
}

// Retire ends a shell that no longer takes orders. What its texts left in the background lives on.
func (sh *Shell) Retire() {
	sh.Process.SignalOther(sh.Process.PID, syscall.SIGKILL)
	<-sh.Process.Done()
	sh.Drain()
	sh.Direct(nil)
}

// Release gives back what a dead shell held. Background jobs of its texts live on.
func (sh *Shell) Release() {
	sh.Process.Release()
	sh.said.Abandon()
	closeLogged(sh.orders, sh.Text)
}

// Layout puts each file at its number; the gaps are closed in the child.
func Layout(files map[int]*os.File) []uintptr {
	highest := 0
	for number := range files {
		highest = max(highest, number)
	}
	list := make([]uintptr, highest+1)
	for number := range list {
		list[number] = ^uintptr(0)
		if file := files[number]; file != nil {
			list[number] = file.Fd()
		}
	}
	return list
}

// MemoryFile makes a file that no path leads to.
func MemoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Rewrite replaces what a file holds.
func Rewrite(file *os.File, text string) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := io.WriteString(io.NewOffsetWriter(file, 0), text)
	return err
}

func closeLogged(files ...*os.File) {
	for _, file := range files {
		if file == nil {
			continue
		}
		if err := file.Close(); err != nil {
			log.Printf("event=shell_file_not_closed name=%s error=%q", file.Name(), err)
		}
	}
}
