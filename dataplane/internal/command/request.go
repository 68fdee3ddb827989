// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/environment"
)

// request is the body of POST /command.
type request struct {
	Command    string            `json:"command"`
	Argv       []string          `json:"argv"`
	Cwd        string            `json:"cwd"`
	Background bool              `json:"background"`
	TimeoutMS  *int64            `json:"timeout"`
	UID        *int64            `json:"uid"`
	GID        *int64            `json:"gid"`
	Envs       map[string]string `json:"envs"`
	// Stdin asks for a standard input that POST /command/{id}/stdin feeds.
	Stdin bool `json:"stdin"`
}

// plan is a request that passed all checks, ready to start.
type plan struct {
	content    string
	background bool
	stdin      bool
	timeout    time.Duration
	identity   environment.Identity
	variables  environment.Variables
	cwd        string
	// script is shell text; with an empty one argv is started as it is.
	script string
	shell  environment.Shell
	argv   []string
}

// errNoShell is the refusal of command text in an image without a shell.
var errNoShell = errors.New("the sandbox's image has neither bash nor sh: send argv instead of command")

// check validates a request against the sandbox it will run in.
func (req *request) check(env *environment.Environment) (*plan, error) {
	if err := req.checkForm(); err != nil {
		return nil, err
	}
	identity, err := env.Identify(req.UID, req.GID)
	if err != nil {
		return nil, err
	}
	p := &plan{
		content: req.content(), background: req.Background, stdin: req.Stdin, timeout: req.timeout(),
		identity: identity, variables: env.ComposeFor(identity, req.Envs), script: req.Command, argv: req.Argv,
	}
	if p.cwd, err = workingDirectory(req.Cwd, env, p.variables); err != nil {
		return nil, err
	}
	if req.Command == "" {
		return p, nil
	}
	if p.shell, err = p.variables.Shell(); err != nil {
		return nil, errNoShell
	}
	return p, nil
}

func (req *request) checkForm() error {
	switch {
	case req.Command == "" && len(req.Argv) == 0:
		return errors.New("give either command or argv")
	case req.Command != "" && req.Argv != nil:
		return errors.New("give command or argv, not both")
	case strings.Contains(req.Command, "\x00"):
		return errors.New("command contains a NUL byte")
	case len(req.Argv) > 0 && req.Argv[0] == "":
		return errors.New("argv[0] is empty")
	case req.TimeoutMS != nil && *req.TimeoutMS < 1:
		return errors.New("timeout is in milliseconds and at least 1")
	case req.Background && req.Stdin:
		return errors.New("a background command reads from /dev/null: stdin is for foreground ones")
	}
	for i, arg := range req.Argv {
		if strings.Contains(arg, "\x00") {
			return fmt.Errorf("argv[%d] contains a NUL byte", i)
		}
	}
	for name, value := range req.Envs {
		if !environment.Transferable(name, value) {
			return fmt.Errorf("envs: %q cannot be passed to a process", name)
		}
	}
	return nil
}

// content is how status shows the command: its text, or argv as JSON.
func (req *request) content() string {
	if req.Command != "" {
		return req.Command
	}
	text, err := json.Marshal(req.Argv)
	if err != nil {
		return strings.Join(req.Argv, " ")
	}
	return string(text)
}

func (req *request) timeout() time.Duration {
	if req.TimeoutMS == nil {
		return 0
	}
	return time.Duration(min(*req.TimeoutMS, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// workingDirectory expands a requested directory against the child's environment.
func workingDirectory(cwd string, env *environment.Environment, variables environment.Variables) (string, error) {
	if cwd == "" {
		return env.Cwd(), nil
	}
	expanded := variables.Expand(cwd, env.Cwd())
	info, err := os.Stat(expanded)
	if err != nil {
		return "", fmt.Errorf("cwd: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("cwd: %s is not a directory", expanded)
	}
	return expanded, nil
}
