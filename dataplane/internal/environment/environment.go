// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package environment decides what a new process finds around it: variables, directory, user, and
// which program a name stands for.
package environment

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"sync"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/plain"
)

// defaultPath is searched when the environment names no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// fileLimit is how large the file with additional variables may be.
const fileLimit = 1 << 20

// envsVariable tells user processes where the file with additional variables is.
const envsVariable = "EXECD_ENVS"

// Environment is what all processes of the sandbox start from.
type Environment struct {
	mu   sync.RWMutex
	base map[string]string
	file string
	cwd  string
	user User
}

// User are the credentials that processes get when a request names none. Groups that are nil are those
// of the account.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// New makes the environment of a sandbox. The file may be missing until somebody writes it.
func New(base map[string]string, file, cwd string, user User) *Environment {
	base = maps.Clone(base)
	if base == nil {
		base = map[string]string{}
	}
	if base["PATH"] == "" {
		base["PATH"] = defaultPath
	}
	if file != "" {
		base[envsVariable] = file
	}
	if cwd == "" {
		cwd = "/"
	}
	return &Environment{base: base, file: file, cwd: cwd, user: user}
}

// idVariable tells user processes which sandbox they are in.
const idVariable = "OPENSANDBOX_ID"

// Rename tells processes to come that this is another sandbox now, with variables of its own. They replace
// those of the one before; where there are none, as for a sandbox that goes on itself, these stay.
func (e *Environment) Rename(sandboxID string, variables map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(variables) > 0 {
		e.base = maps.Clone(variables)
	}
	e.base[idVariable] = sandboxID
}

func (e *Environment) ofSandbox() Variables {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return maps.Clone(e.base)
}

// Cwd is the directory that relative paths start from.
func (e *Environment) Cwd() string { return e.cwd }

// Compose returns the variables of a new process: the sandbox's, then those of the file, which is
// read anew each time, then the request's.
func (e *Environment) Compose(overrides map[string]string) Variables {
	return e.ComposeFor(Identity{}, overrides)
}

// ComposeFor is Compose for a process of another user, whose HOME and names differ.
func (e *Environment) ComposeFor(identity Identity, overrides map[string]string) Variables {
	variables := e.ofSandbox()
	maps.Copy(variables, identity.variables)
	if identity.composed {
		parseFile(identity.file, variables)
	} else {
		e.addFile(variables)
	}
	maps.Copy(variables, overrides)
	return variables
}

func (e *Environment) addFile(variables Variables) {
	content, err := e.readFile()
	if err != nil {
		log.Printf("event=envs_file_unreadable error=%q", err)
		return
	}
	parseFile(content, variables)
}

// readFile is empty without a file. The sandbox may put anything in its place: what is no regular
// file, such as /dev/null, holds no variables.
func (e *Environment) readFile() (string, error) {
	if e.file == "" {
		return "", nil
	}
	content, err := plain.Read(e.file, fileLimit)
	var irregular *plain.NotRegularError
	if errors.Is(err, os.ErrNotExist) || errors.As(err, &irregular) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the file with the sandbox's variables: %w", err)
	}
	return string(content), nil
}

// Expand makes a path of a request absolute, against the variables of the sandbox.
func (e *Environment) Expand(path string) string {
	return e.Compose(nil).Expand(path, e.cwd)
}

// Variables is a complete environment.
type Variables map[string]string

// Lookup implements api.Lookup.
func (v Variables) Lookup(name string) (string, bool) {
	value, found := v[name]
	return value, found
}

// Expand makes a path absolute, against these variables.
func (v Variables) Expand(path, base string) string {
	return api.ExpandPath(path, base, v.Lookup)
}

// List returns NAME=value pairs in a stable order. Pairs that no process could receive are left out.
func (v Variables) List() []string {
	list := make([]string, 0, len(v))
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if Transferable(name, v[name]) {
			list = append(list, name+"="+v[name])
		}
	}
	return list
}
