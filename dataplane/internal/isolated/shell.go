// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/plain"
	"casulo.dev/dataplane/internal/process"
)

// Descriptors of a session's shell besides the standard ones, far above those that scripts use.
const (
	textFD   = 90 // the text to run, in memory
	outputFD = 91 // where it prints
	statusFD = 92 // where the shell says how it ended
	stateFD  = 93 // variables and functions, in memory, for the shells that follow
)

// The lines that a shell executes. Nothing in a user's text can reach over into the next one.
const (
	keepState = `{ \builtin declare -p; \builtin declare -f; \builtin printf '` + stateEnd + `'; } >|/proc/self/fd/93`
	takeState = `\builtin . /proc/self/fd/93 2>/dev/null; \builtin cd -- "$PWD"; `
	readText  = `IFS= \builtin read -r -d '' __casulo </proc/self/fd/90 || \builtin :; \builtin export -n __casulo; `
	evalText  = `\builtin eval "$__casulo" 0</dev/null 1>&91 2>&91 90<&- 91>&- 92>&-; `
	settle    = `\builtin eval "$__casulo_after"; \builtin unset __casulo __casulo_after; `
	report    = `__casulo_code=$?; ` + settle + keepState + `; \builtin printf '%s\n' "$__casulo_code" >&92` + "\n"
	prepare   = `__casulo_exit() { ` + settle + keepState + `; }; \builtin trap __casulo_exit EXIT; ` + keepState + "\n"
	// background is the program of a shell of its own that begins where the session is.
	background = takeState + readText + `exec 90<&- 93>&-; \builtin eval "$__casulo"`
)

// stateEnd is the last line of a complete state.
const stateEnd = `#\n`

// stopGrace is how long what runs in a session may take to end after SIGTERM.
const stopGrace = 2 * time.Second

// shell is the living shell of a session.
type shell struct {
	process *process.Process
	orders  *os.File
	text    *os.File
	pump    *output.Pump
	results chan int

	mu   sync.Mutex
	sink *output.Log
}

// identity is as whom and with which variables a session's processes run.
type identity struct {
	program    string
	credential *syscall.Credential
	variables  environment.Variables
	cwd        string
}

// startShell starts one in a world; it executes nothing before `begin`.
func startShell(supervisor *process.Supervisor, w *world, id string, as identity, state *os.File) (*shell, error) {
	sh := &shell{results: make(chan int, 1)}
	ends, printed, status, err := sh.connect(as.credential)
	if err != nil {
		return nil, err
	}
	defer closeLogged(slices.Collect(maps.Values(ends))...)
	descriptors := maps.Clone(ends)
	descriptors[textFD], descriptors[stateFD] = sh.text, state
	sh.process, err = supervisor.Start(process.Spec{
		ID: id, Path: as.program, Argv: []string{"bash", "--noprofile", "--norc", "-s"}, Env: as.variables.List(),
		Dir: as.cwd, User: as.credential, Files: layout(descriptors), Inside: w.join,
	})
	if err != nil {
		closeLogged(sh.orders, sh.text, printed, status)
		return nil, err
	}
	if sh.pump, err = output.StartPump(printed, sh.print); err != nil {
		return nil, err
	}
	go sh.readResults(status)
	return sh, nil
}

// connect makes all channels; the first result are the ends that only the child needs.
func (sh *shell) connect(owner *syscall.Credential) (ends map[int]*os.File, printed, status *os.File, err error) {
	text, err1 := memoryFile("text")
	orders, toShell, err2 := os.Pipe()
	printed, printEnd, err3 := output.Pipe()
	status, statusEnd, err4 := os.Pipe()
	null, err5 := plain.Null()
	sh.text, sh.orders = text, toShell
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		closeLogged(text, orders, toShell, printed, status, statusEnd, null)
		return nil, nil, nil, err
	}
	if owner != nil {
		// Programs that open /dev/stdout by name need to own it; without, only those fail.
		if err := unix.Fchown(printEnd, int(owner.Uid), int(owner.Gid)); err != nil {
			log.Printf("event=session_output_not_owned error=%q", err)
		}
	}
	ends = map[int]*os.File{0: orders, 1: null, outputFD: os.NewFile(uintptr(printEnd), "print"), statusFD: statusEnd}
	return ends, printed, status, nil
}

// layout puts each file at its number; standard error is where standard output is.
func layout(descriptors map[int]*os.File) []uintptr {
	list := slices.Repeat([]uintptr{^uintptr(0)}, slices.Max(slices.Collect(maps.Keys(descriptors)))+1)
	for number, file := range descriptors {
		list[number] = file.Fd()
	}
	list[2] = list[1]
	return list
}

// begin makes a new shell ready, with the state of the one before if there was one.
func (sh *shell) begin(restored bool) error {
	if restored {
		return sh.order(takeState + prepare)
	}
	return sh.order(prepare)
}

// execute hands over a text, with variables that last as long as it runs.
func (sh *shell) execute(text string, variables map[string]string) error {
	if err := rewrite(sh.text, text+"\x00"); err != nil {
		return err
	}
	return sh.order(readText + assignments(variables) + evalText + report)
}

// assignments exports variables, and notes how to restore what they were before.
func assignments(variables map[string]string) string {
	var line strings.Builder
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := strings.ReplaceAll(variables[name], "'", `'\''`)
		fmt.Fprintf(&line, `__casulo_after+="\builtin unset %[1]s; ${%[1]s@A}"$'\n'; \builtin export %[1]s='%[2]s'; `, name, value)
	}
	return line.String()
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

func (sh *shell) readResults(status *os.File) {
	defer status.Close()
	lines := bufio.NewScanner(status)
	for lines.Scan() {
		if code, err := strconv.Atoi(strings.TrimSpace(lines.Text())); err == nil {
			sh.results <- code
		}
	}
}

func (sh *shell) alive() bool {
	select {
	case <-sh.process.Done():
		return false
	default:
		return true
	}
}

// end stops the shell and what it started, with grace for cleaning up.
func (sh *shell) end(grace time.Duration) {
	sh.process.SignalTree(syscall.SIGTERM)
	sh.process.SignalTree(syscall.SIGCONT)
	if !sh.process.Tree.WaitEmpty(grace) {
		sh.process.Tree.Kill()
	}
	<-sh.process.Done()
}

// release gives back what a dead shell held.
func (sh *shell) release() {
	sh.process.Release()
	closeLogged(sh.orders, sh.text)
}

func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func rewrite(file *os.File, text string) error {
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
			log.Printf("event=session_file_not_closed name=%s error=%q", file.Name(), err)
		}
	}
}
