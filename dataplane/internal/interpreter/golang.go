// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/plain"
	"casulo.dev/dataplane/internal/stream"
)

// goEngine compiles each cell into a program of its own: with the declarations and imports of the
// cells before, and with the values of their variables as far as these can be carried.
type goEngine struct {
	launch  launch
	program string
	folder  string
	memory  goMemory
	cells   int

	mu     sync.Mutex
	closed bool
	child  *child
}

func startGo(l launch) (engine, error) {
	program, err := golang.find(l)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(l.variables["TMPDIR"], "casulo-go-")
	if err != nil {
		return nil, err
	}
	e := &goEngine{launch: l, program: program, folder: folder, memory: goMemory{lost: map[string]string{}}}
	module := "module cell\n\ngo " + languageVersion(program) + "\n"
	if err := errors.Join(e.write("go.mod", module), e.own()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return e, nil
}

// oldestGo is assumed of a tool chain that does not tell its version.
const oldestGo = "1.21"

// languageVersion reads which Go a tool chain speaks, from the file beside it.
func languageVersion(program string) string {
	resolved, err := filepath.EvalSymlinks(program)
	if err != nil {
		return oldestGo
	}
	content, err := plain.Read(filepath.Join(filepath.Dir(resolved), "..", "VERSION"), 4<<10)
	numbers := parts(string(content))
	if err != nil || len(numbers) < 2 {
		return oldestGo
	}
	return fmt.Sprintf("%d.%d", numbers[0], numbers[1])
}

// own gives the folder to the user whose programs are built in it.
func (e *goEngine) own() error {
	if user := e.launch.identity.Credential; user != nil {
		return os.Chown(e.folder, int(user.Uid), int(user.Gid))
	}
	return nil
}

func (e *goEngine) write(name, text string) error {
	return os.WriteFile(filepath.Join(e.folder, name), []byte(text), 0o644)
}

func (e *goEngine) alive() bool       { return true }
func (e *goEngine) directory() string { return e.launch.dir }

func (e *goEngine) close() {
	e.mu.Lock()
	e.closed = true
	running := e.child
	e.mu.Unlock()
	if running != nil {
		running.end()
	}
	if err := os.RemoveAll(e.folder); err != nil {
		log.Printf("event=go_folder_not_removed error=%q", err)
	}
}

// execute builds the cell and runs it. A value that turns out to be none is built again as a statement.
func (e *goEngine) execute(c *cell) *stream.Failure {
	e.cells++
	p := e.memory.program(c.code, e.cells)
	failure := e.build(c, p)
	for failure != nil && p.mended(strings.Join(failure.Traceback, "\n")) {
		failure = e.build(c, p)
	}
	if failure != nil || c.stopped != "" {
		return failure
	}
	failure = e.run(c, p)
	if failure == nil {
		e.memory = p.remember(c.saved)
	} else {
		// It compiled, so its declarations are good; its variables have no values.
		e.memory.declarations, e.memory.imports = declarationsOf(p), p.memory.imports
	}
	return failure
}

func declarationsOf(p *goProgram) []chunk {
	var kept []chunk
	for _, c := range p.memory.declarations {
		if c.kind != chunkVariable || c.cell != p.cell {
			kept = append(kept, c)
		}
	}
	return kept
}

func (e *goEngine) build(c *cell, p *goProgram) *stream.Failure {
	if err := e.lay(p); err != nil {
		return &stream.Failure{Name: nameCompile, Value: err.Error()}
	}
	var told transcript
	failure := e.follow(c, "build", []string{e.program, "build", "-ldflags=-s -w", "-o", "cell", "."}, e.folder, nil, told.add)
	if failure == nil || failure.Reason != reasonExit {
		return failure
	}
	return e.compileFailure(told.String())
}

// lay writes the program's files. Support that a cell does not use would only take time to build.
func (e *goEngine) lay(p *goProgram) error {
	text := p.text()
	carries := strings.Contains(text, "casuloSave(") || strings.Contains(text, "casuloReceive(")
	failures := []error{e.write("main.go", text)}
	for name, wanted := range map[string]bool{"support": carries || p.shown != nil, "carry": carries} {
		support := []byte("package main\n")
		if wanted {
			var err error
			if support, err = embedded.ReadFile("drivers/" + name + ".go.tmpl"); err != nil {
				return err
			}
		}
		failures = append(failures, e.write(name+".go", string(support)))
	}
	return errors.Join(failures...)
}

// compileFailure tells what the compiler said, in terms of cells.
func (e *goEngine) compileFailure(told string) *stream.Failure {
	var lines []string
	for line := range strings.Lines(told) {
		line = strings.TrimSpace(strings.ReplaceAll(line, e.folder+"/", ""))
		if line != "" && !strings.HasPrefix(line, "# ") {
			lines = append(lines, strings.TrimPrefix(line, "./"))
		}
	}
	if len(lines) == 0 {
		lines = []string{"the compiler failed without saying why"}
	}
	failure := &stream.Failure{Name: nameCompile, Value: lines[0], Traceback: lines}
	for name, typ := range e.memory.lost {
		if strings.Contains(told, "undefined: "+name+"\n") {
			failure.Traceback = append(failure.Traceback, fmt.Sprintf(
				"%s was of type %s, whose values cannot be carried from one cell to the next", name, typ))
		}
	}
	return failure
}

// run executes the built program where the context is. What it prints on stderr also explains a panic.
func (e *goEngine) run(c *cell, p *goProgram) *stream.Failure {
	order := []string{"restore"}
	for _, v := range p.memory.variables {
		order = append(order, v.name, string(v.data))
	}
	var complaints tail
	failure := e.follow(c, "run", []string{filepath.Join(e.folder, "cell")}, e.launch.dir, appendFrame(nil, order...),
		func(s output.Stream, data []byte) {
			if s == output.Stderr {
				complaints.add(data)
			}
			c.events.print(s, data)
		})
	if failure == nil || failure.Reason != reasonExit {
		return failure
	}
	if message := complaints.panicked(); message != nil {
		return &stream.Failure{Name: namePanic, Value: message[0], Traceback: message, Reason: reasonExit}
	}
	return failure
}

// follow starts a process and serves it to its end. Nil means that it ended well.
func (e *goEngine) follow(
	c *cell, step string, argv []string, dir string, order []byte, sink func(output.Stream, []byte),
) *stream.Failure {
	variables := e.launch.variables
	env := append(variables.List(), "GOTOOLCHAIN=local", "GO111MODULE=on", "GOWORK=off", "CGO_ENABLED=0")
	started, err := startChild(e.launch.service.supervisor, e.launch.id+"-"+step, childSpec{
		path: argv[0], argv: argv, env: env, dir: dir, user: e.launch.identity.Credential, at: usual,
		sink: sink,
	})
	if err != nil {
		return &stream.Failure{Name: nameDied, Value: err.Error()}
	}
	defer started.end()
	if !e.hold(started) {
		started.end()
	}
	defer e.hold(nil)
	if order != nil {
		if err := started.order(order); err != nil {
			started.process.Tree.Kill()
		}
	}
	c.follow(started, func() { started.process.SignalGroup(syscall.SIGINT) })
	exit := started.process.Exit()
	if c.stopped == "" && exit.Signal == 0 && !exit.OOM {
		return exitFailure(fmt.Sprint(exit.Code))
	}
	return c.ended(exit)
}

// hold notes which process runs, for close. False means that the context is closed already.
func (e *goEngine) hold(running *child) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.child = running
	return !e.closed
}

// tail keeps the end of what a program complains about.
type tail struct {
	data []byte
}

const tailSize = 64 << 10

func (t *tail) add(data []byte) {
	t.data = append(t.data, data...)
	if extra := len(t.data) - tailSize; extra > 0 {
		t.data = t.data[extra:]
	}
}

// panicked finds the report of a panic or of the runtime's own failure.
func (t *tail) panicked() []string {
	text := string(t.data)
	start := max(strings.LastIndex(text, "panic: "), strings.LastIndex(text, "fatal error: "))
	if start < 0 {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(text[start:]), "\n")
	lines[0] = strings.TrimPrefix(strings.TrimPrefix(lines[0], "panic: "), "fatal error: ")
	return lines
}
