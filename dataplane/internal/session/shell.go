// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
)

// startupVariables name files that a shell would source by itself, with our orders as their input.
var startupVariables = []string{"BASH_ENV", "ENV"}

// shell is one living shell process of a session.
type shell struct {
	dialect *dialect
	process *process.Process
	orders  *os.File // its standard input: the lines it executes
	text    *os.File
	pump    *output.Pump
	status  *output.Pump
	results chan int
	// probed is true while an empty line waits that the shell reads only when it is done.
	probed bool

	mu     sync.Mutex
	sink   *output.Log // where its output goes now; nil means nowhere
	report []byte      // an unfinished line of the status channel
	begun  bool
}

// ends are the descriptors that only the child needs.
type ends struct {
	files []*os.File
	null  *os.File
}

// startShell starts a shell for the session. State, when it holds something, replaces its variables.
func startShell(s *Session) (*shell, error) {
	kind, program, err := chooseShell(s.variables)
	if err != nil {
		return nil, err
	}
	restored := fileSize(s.state) > 0
	variables, startup := startEnvironment(s.variables, restored)
	sh := &shell{dialect: kind, results: make(chan int, 1)}
	child := &ends{}
	defer child.close()
	spec := process.Spec{
		ID: s.ID, Path: program.Path, Argv: append([]string{program.Name()}, kind.args...),
		Env: variables, Dir: s.startDirectory(), User: s.identity.Credential,
	}
	status, printed, err := sh.connect(child, s.state, &spec)
	if err != nil {
		return nil, err
	}
	if sh.process, err = s.service.supervisor.Start(spec); err != nil {
		return nil, errors.Join(err, closeAll(sh.orders, sh.text, status, printed))
	}
	sh.pump, err = output.StartPump(printed, sh.print)
	if err != nil {
		return nil, err
	}
	sh.status, err = output.StartPump(status, sh.hear)
	if err != nil {
		return nil, err
	}
	return sh, sh.order(kind.prepare(startup, restored))
}

func chooseShell(variables environment.Variables) (*dialect, environment.Shell, error) {
	program, err := variables.Shell()
	if err != nil {
		return nil, program, errNoShell
	}
	if program.Bash {
		return &bash, program, nil
	}
	return &posix, program, nil
}

// startEnvironment takes out what would make the shell read a file before our first order.
func startEnvironment(variables environment.Variables, restored bool) (list []string, startup string) {
	if restored {
		return nil, ""
	}
	rest := environment.Variables{}
	for name, value := range variables {
		rest[name] = value
	}
	for _, name := range startupVariables {
		if rest[name] != "" && startup == "" {
			startup = rest[name]
		}
		delete(rest, name)
	}
	return rest.List(), startup
}

// connect makes all channels to the shell and lays out the child's descriptors.
func (sh *shell) connect(child *ends, state *os.File, spec *process.Spec) (status, printed *os.File, err error) {
	sh.text, err = memoryFile("text")
	if err != nil {
		return nil, nil, err
	}
	orders, toShell, err1 := os.Pipe()
	printed, printEnd, err2 := output.Pipe()
	status, reportEnd, err3 := output.Pipe()
	null, err4 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, nil, errors.Join(err, closeAll(sh.text, orders, toShell, printed, status, null))
	}
	sh.orders = toShell
	print, statusEnd := os.NewFile(uintptr(printEnd), "print"), os.NewFile(uintptr(reportEnd), "status")
	child.files, child.null = []*os.File{orders, print, statusEnd, null}, null
	fds := sh.dialect.fds
	spec.Files = layout(map[int]*os.File{
		0: orders, 1: null, 2: null, fds.text: sh.text, fds.output: print, fds.status: statusEnd, fds.state: state,
	})
	return status, printed, nil
}

// layout puts each file at its number; the gaps are closed in the child.
func layout(files map[int]*os.File) []uintptr {
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

func (e *ends) close() {
	if err := closeAll(e.files...); err != nil {
		log.Printf("event=shell_ends_not_closed error=%q", err)
	}
}

func closeAll(files ...*os.File) error {
	var failures []error
	for _, file := range files {
		if file != nil {
			failures = append(failures, file.Close())
		}
	}
	return errors.Join(failures...)
}

func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func fileSize(file *os.File) int64 {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// execute hands over a script. The result arrives in results, or the process ends instead.
func (sh *shell) execute(script, cwd string) error {
	if err := sh.text.Truncate(0); err != nil {
		return err
	}
	if _, err := io.WriteString(io.NewOffsetWriter(sh.text, 0), sh.dialect.text(script)); err != nil {
		return err
	}
	sh.mu.Lock()
	sh.begun, sh.probed = false, false
	sh.mu.Unlock()
	return sh.order(sh.dialect.run(script, cwd))
}

// order writes a line. A shell that is gone is no error here: its end is seen anyway.
func (sh *shell) order(line string) error {
	_, err := sh.orders.WriteString(line)
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// print receives what the shell and everything below it prints. Between runs nobody wants it.
func (sh *shell) print(data []byte) {
	sh.mu.Lock()
	sink := sh.sink
	sh.mu.Unlock()
	if sink != nil {
		sink.Append(output.Stdout, data)
	}
}

func (sh *shell) direct(sink *output.Log) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sink = sink
}

// hear takes what the shell says on the status channel.
func (sh *shell) hear(data []byte) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.report = append(sh.report, data...)
	for {
		line, rest, found := bytes.Cut(sh.report, []byte("\n"))
		if !found {
			return
		}
		sh.take(string(line))
		sh.report = append([]byte(nil), rest...)
	}
}

// take notes a line. A status without a beginning is that of our own orders: it says nothing.
func (sh *shell) take(line string) {
	if line == begun {
		sh.begun = true
		return
	}
	code, err := strconv.Atoi(line)
	if err != nil || !sh.begun {
		return
	}
	select {
	case sh.results <- code:
	default:
		// The run has its status already.
	}
}

// heard says, for a shell that is through with its orders or gone, what it had to say.
func (sh *shell) heard() (code int, reported, executed bool) {
	sh.status.Drain()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	select {
	case code := <-sh.results:
		return code, true, true
	default:
		return 0, false, sh.begun
	}
}

// idle reports whether the shell is back at reading orders. It reads one line at a time, so that an
// empty line, sent once it has taken the order, stays in the pipe for as long as the order takes.
// A look costs one system call; a shell whose user turned execution off can be known by nothing else.
func (sh *shell) idle() bool {
	unread, err := unix.IoctlGetInt(int(sh.orders.Fd()), unix.TIOCINQ)
	if err != nil || unread > 0 {
		return false
	}
	if sh.probed {
		return true
	}
	sh.probed = true
	return sh.order("\n") != nil
}

// alive reports whether the shell can take another script.
func (sh *shell) alive() bool {
	select {
	case <-sh.process.Done():
		return false
	default:
		return true
	}
}

// release gives back what a dead shell held. Background jobs of its runs live on.
func (sh *shell) release() {
	sh.process.Release()
	sh.status.Abandon()
	if err := closeAll(sh.orders, sh.text); err != nil {
		log.Printf("event=shell_not_released error=%q", err)
	}
}

// end stops the shell and everything it started, with grace for cleaning up.
func (sh *shell) end(grace time.Duration) {
	sh.process.SignalTree(syscall.SIGTERM)
	sh.process.SignalTree(syscall.SIGCONT)
	if !sh.process.Tree.WaitEmpty(grace) {
		sh.process.Tree.Kill()
	}
	<-sh.process.Done()
}
