// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"fmt"
	"strconv"
	"time"

	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/stream"
)

// Reasons for an end that was not the command's own exit with 0.
const (
	ReasonExit        = "exit"
	ReasonSignal      = "signal"
	ReasonTimeout     = "timeout"
	ReasonInterrupted = "interrupted"
	ReasonOOM         = "oom"
	ReasonStart       = "start"
	ReasonNotFound    = "not_found"
	ReasonLost        = "session_reset"
)

// Names of errors that clients see. The first is the official one for every ordinary failure.
const (
	nameExec      = "CommandExecError"
	nameTimeout   = "CommandTimeoutError"
	nameInterrupt = "CommandInterruptedError"
	nameOOM       = "CommandOutOfMemoryError"
	nameLost      = "SessionResetError"
)

// Exit codes that shells use for commands that could not be started.
const (
	codeNotFound      = 127
	codeNotExecutable = 126
)

// lost is what a session says whose shell a script made unusable.
const lost = "the session's shell stopped executing commands (as after set -n, or when its builtins were redefined) " +
	"and did not say how this one ended; the session goes on with a new shell"

// Outcome is how a command, or a run in a session, ended.
type Outcome struct {
	Exit process.Exit
	// Stopped is ReasonTimeout or ReasonInterrupted when we ended it.
	Stopped string
	Timeout time.Duration
	// Lost is true when the session's shell stopped taking orders, so that no status is known.
	Lost bool
	// Start is the failure to start at all.
	Start error
}

// Reason classifies the outcome; it is empty for success.
func (o *Outcome) Reason() string {
	switch {
	case o.Start != nil && isNotFound(o.Start):
		return ReasonNotFound
	case o.Start != nil:
		return ReasonStart
	case o.Stopped != "":
		return o.Stopped
	case o.Lost:
		return ReasonLost
	case o.Exit.OOM:
		return ReasonOOM
	case o.Exit.Signal != 0:
		return ReasonSignal
	case o.Exit.Code != 0:
		return ReasonExit
	}
	return ""
}

// Code is the exit code as a shell would report it.
func (o *Outcome) Code() int {
	switch {
	case o.Start != nil && isNotFound(o.Start):
		return codeNotFound
	case o.Start != nil:
		return codeNotExecutable
	}
	return o.Exit.Code
}

// Failure is the terminal event of an outcome that is no success.
func (o *Outcome) Failure() stream.Failure {
	reason := o.Reason()
	failure := stream.Failure{
		Name: nameExec, Value: strconv.Itoa(o.Code()), Reason: reason, MemoryLimitHit: o.Exit.MemoryLimitHit,
	}
	if o.Exit.Signal != 0 {
		failure.Signal = process.SignalName(o.Exit.Signal)
	}
	switch reason {
	case ReasonStart, ReasonNotFound:
		failure.Value = o.Start.Error()
		failure.Traceback = []string{o.Start.Error()}
		return failure
	case ReasonLost:
		failure.Name, failure.Value, failure.Traceback = nameLost, lost, []string{lost}
		return failure
	case ReasonTimeout:
		failure.Name = nameTimeout
		failure.Traceback = append(failure.Traceback, fmt.Sprintf("command timed out after %d ms", o.Timeout.Milliseconds()))
	case ReasonInterrupted:
		failure.Name = nameInterrupt
		failure.Traceback = append(failure.Traceback, "command was interrupted")
	case ReasonOOM:
		failure.Name = nameOOM
		failure.Traceback = append(failure.Traceback,
			"out of memory: the kernel killed a process of this command at the sandbox's memory limit")
	}
	failure.Traceback = append(failure.Traceback, o.ending())
	return failure
}

func (o *Outcome) ending() string {
	if o.Exit.Signal != 0 {
		return fmt.Sprintf("signal: %s (%s)", o.Exit.Signal, process.SignalName(o.Exit.Signal))
	}
	return fmt.Sprintf("exit status %d", o.Exit.Code)
}
