// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"log"
	"os"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/shell"
)

// startupVariables name files that a shell would source by itself, with our orders as their input.
var startupVariables = []string{"BASH_ENV", "ENV"}

// living is the shell of a session, and how it is told what to do.
type living struct {
	*shell.Shell
	dialect *dialect
}

// startShell starts a shell for the session. State, when it holds something, replaces its variables.
func startShell(s *Session) (*living, error) {
	kind, program, err := chooseShell(s.variables)
	if err != nil {
		return nil, err
	}
	restored := fileSize(s.state) > 0
	variables, startup := startEnvironment(s.variables, restored)
	started, err := shell.Start(s.service.supervisor, s.identity.Credential, func(ends shell.Ends, text *os.File) process.Spec {
		return process.Spec{
			ID: s.ID, Path: program.Path, Argv: append([]string{program.Name()}, kind.args...),
			Env: variables, Dir: s.startDirectory(), User: s.identity.Credential,
			Files: shell.Layout(map[int]*os.File{
				0: ends.Orders, 1: ends.Null, 2: ends.Null,
				kind.fds.text: text, kind.fds.output: ends.Print, kind.fds.status: ends.Status, kind.fds.state: s.state,
			}),
		}
	})
	if err != nil {
		return nil, err
	}
	return &living{started, kind}, started.Order(kind.prepare(startup, restored))
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

func fileSize(file *os.File) int64 {
	info, err := file.Stat()
	if err != nil {
		log.Printf("event=session_state_unreadable error=%q", err)
		return 0
	}
	return info.Size()
}

// execute hands over a script.
func (sh *living) execute(script, cwd string) error {
	return sh.Hand(sh.dialect.text(script), sh.dialect.run(script, cwd))
}
