// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"fmt"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/stream"
)

// Why a cell ended otherwise than by itself. These words are part of the wire.
const (
	reasonTimeout     = "timeout"
	reasonInterrupted = "interrupted"
	reasonRemoved     = "removed"
	reasonOOM         = "oom"
	reasonSignal      = "signal"
	reasonExit        = "exit"
)

// Names of errors that are not the language's own.
const (
	nameTimeout     = "CodeTimeoutError"
	nameInterrupted = "CodeInterruptedError"
	nameDied        = "ContextDiedError"
	nameExit        = "CommandExecError"
	nameProgram     = "ProgramDiedError"
	nameStopped     = "KeyboardInterrupt"
	nameCompile     = "CompileError"
	namePanic       = "panic"
)

// exitFailure is what a status other than 0 means to a shell; 0 is no failure.
func exitFailure(status string) *stream.Failure {
	code := strings.TrimLeft(status, "0")
	if code == "" {
		return nil
	}
	return &stream.Failure{
		Name: nameExit, Value: code, Reason: reasonExit, Traceback: []string{"exit status " + code},
	}
}

// survived is how a cell ended whose context can go on. A cell that finished although it was asked
// to stop has simply finished.
func (c *cell) survived() *stream.Failure {
	failure := c.failure
	if failure == nil || c.stopped == "" {
		return failure
	}
	failure.Reason = c.stopped
	if c.stopped == reasonTimeout {
		failure.Name, failure.Value = nameTimeout, timeoutText(c.timeout)
	}
	return failure
}

// unbegun is how a cell ended that had to stop while its context was starting; the context goes on.
func (c *cell) unbegun() *stream.Failure {
	failure := &stream.Failure{Name: nameStopped, Value: "the cell was interrupted", Reason: c.stopped}
	if c.stopped == reasonTimeout {
		failure.Name, failure.Value = nameTimeout, timeoutText(c.timeout)
	}
	failure.Value += " while its context was starting, and did not run"
	failure.Traceback = []string{failure.Name + ": " + failure.Value}
	return failure
}

// ended is how a cell ended that was a process of its own; the context goes on without it.
func (c *cell) ended(exit process.Exit) *stream.Failure {
	failure := c.died(exit)
	failure.Value = strings.TrimSuffix(failure.Value, freshNext)
	switch c.stopped {
	case reasonTimeout:
		failure.Value = timeoutText(c.timeout)
	case reasonInterrupted:
		failure.Name, failure.Value = nameStopped, "the cell was interrupted"
	case reasonRemoved:
	default:
		failure.Name = nameProgram
		failure.Value = strings.Replace(failure.Value, "the context", "the program", 1)
	}
	failure.Traceback = []string{failure.Name + ": " + failure.Value}
	return failure
}

const freshNext = "; what its cells left is lost, and the next run gets a fresh context"

// died is how a cell ended that took its context along.
func (c *cell) died(exit process.Exit) *stream.Failure {
	failure := &stream.Failure{Name: nameDied, Reason: c.stopped}
	switch {
	case c.stopped == reasonTimeout:
		failure.Name = nameTimeout
		failure.Value = timeoutText(c.timeout) + " and did not stop when asked, so the context was ended" + freshNext
	case c.stopped == reasonInterrupted:
		failure.Name = nameInterrupted
		failure.Value = "the cell did not stop when interrupted, so the context was ended" + freshNext
	case c.stopped == reasonRemoved:
		failure.Value = "the context was removed while the cell ran"
	case exit.OOM:
		failure.Reason = reasonOOM
		failure.Value = "the context was killed because the memory limit of the sandbox was reached" + freshNext
	case exit.Signal != 0:
		failure.Reason = reasonSignal
		failure.Signal = process.SignalName(exit.Signal)
		failure.Value = fmt.Sprintf("the context was ended by %s (%s)", failure.Signal, exit.Signal) + freshNext
	default:
		failure.Reason = reasonExit
		failure.Value = fmt.Sprintf("the context ended itself with exit code %d", exit.Code) + freshNext
	}
	failure.Traceback = append(failure.Traceback, failure.Name+": "+failure.Value)
	return failure
}

func timeoutText(limit time.Duration) string {
	return fmt.Sprintf("the cell passed its time limit of %d ms", limit.Milliseconds())
}
