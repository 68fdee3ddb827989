// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/environment"
)

// maxArgument is the longest text that Linux passes as one argument, without its NUL byte.
const maxArgument = 128<<10 - 1

// scriptFD is the descriptor at which a shell finds a script that is too long for an argument.
const scriptFD = 3

// launch is what to execute: a program, its arguments, and perhaps a script in memory.
type launch struct {
	path   string
	argv   []string
	script *os.File
}

func (p *plan) launch() (*launch, error) {
	if p.script == "" {
		path, err := p.variables.Program(p.argv[0])
		return &launch{path: path, argv: p.argv}, err
	}
	if len(p.script) <= maxArgument {
		return &launch{path: p.shell.Path, argv: []string{p.shell.Name(), "-c", p.script}}, nil
	}
	script, err := memoryScript(p.script)
	if err != nil {
		return nil, err
	}
	// Sourcing reads the whole text first; the text itself closes the descriptor for its children.
	source := fmt.Sprintf(". /proc/self/fd/%d", scriptFD)
	return &launch{path: p.shell.Path, argv: []string{p.shell.Name(), "-c", source}, script: script}, nil
}

// memoryScript keeps a script in memory: no copy of it is ever on disk.
func memoryScript(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep the script in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "script")
	if _, err := fmt.Fprintf(file, "exec %d<&-; %s", scriptFD, text); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the script in memory: %w", err), file.Close())
	}
	return file, nil
}

func (l *launch) close() error {
	if l.script == nil {
		return nil
	}
	return l.script.Close()
}

// isNotFound reports whether a start failed because there is no such program.
func isNotFound(err error) bool {
	var unknown *environment.NotFoundError
	return errors.As(err, &unknown) || errors.Is(err, unix.ENOENT)
}
