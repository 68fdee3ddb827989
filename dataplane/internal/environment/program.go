// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// NotFoundError says that a name stands for no program in the sandbox.
type NotFoundError struct {
	Name string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s: command not found in PATH", e.Name)
}

// Program finds what a bare name stands for: the first executable file in the absolute entries of
// PATH. A name with a slash is taken as it is.
func (v Variables) Program(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(v["PATH"]) {
		if !filepath.IsAbs(dir) {
			continue
		}
		candidate := filepath.Join(dir, name)
		if isExecutable(candidate) {
			return candidate, nil
		}
	}
	return "", &NotFoundError{Name: name}
}

// Shell is the program that runs command text.
type Shell struct {
	Path string
	// Bash is false for a plain POSIX shell.
	Bash bool
}

// Name is how the shell calls itself in its messages.
func (s Shell) Name() string { return filepath.Base(s.Path) }

// shellDirs are searched after PATH, which a request may have emptied.
const shellDirs = ":/bin:/usr/bin"

// Shell finds bash, else sh.
func (v Variables) Shell() (Shell, error) {
	search := Variables{"PATH": v["PATH"] + shellDirs}
	if path, err := search.Program("bash"); err == nil {
		return Shell{Path: path, Bash: true}, nil
	}
	path, err := search.Program("sh")
	return Shell{Path: path}, err
}

func isExecutable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
