// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/entrypoint"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/guest"
	"casulo.dev/dataplane/internal/hooks"
	"casulo.dev/dataplane/internal/interpreter"
	"casulo.dev/dataplane/internal/isolated"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/strict"
	"casulo.dev/dataplane/internal/trust"
	"casulo.dev/dataplane/internal/version"
)

// Codes of a failed boot.
const (
	codeInvalidEntrypoint = "SANDBOX::INVALID_ENTRYPOINT"
	codeInvalidParameter  = "SANDBOX::INVALID_PARAMETER"
	codeInvalidImage      = "IMAGE::INVALID"
	codeStartFailed       = "SANDBOX::START_FAILED"
)

// Limits of a connection. Requests and answers themselves may take as long as they need.
const (
	headerTimeout = 30 * time.Second
	idleTimeout   = 10 * time.Minute
)

// farewell bounds how long streams may take to deliver their last event when the sandbox ends.
const farewell = 500 * time.Millisecond

// daemon is everything that lives as long as the sandbox.
type daemon struct {
	document   *boot.Document
	supervisor *process.Supervisor
	env        *environment.Environment
	entry      *entrypoint.Entrypoint
	services   *services
	server     *http.Server

	isolatedHome *isolated.Home
	// probes answers official clients; nil where somebody else does.
	probes net.Listener

	// mu is held while the sandbox stands still for a checkpoint.
	mu     sync.Mutex
	events *os.File
	peers  connections
	log    *entrypoint.Log
}

// run starts the sandbox, waits for its end and returns the exit status. What besides is done as soon as
// it runs.
func run(channel *boot.Channel, document *boot.Document, parked *process.Supervisor, besides func(*daemon)) int {
	if err := installTrust(document); err != nil {
		fail(channel, err)
	}
	d := &daemon{document: document, supervisor: parked, env: newEnvironment(document), events: channel.Events}
	listeners, listen, err := d.start(channel)
	if err != nil {
		fail(channel, err)
	}
	if err := channel.Ready(version.Version, listen); err != nil {
		log.Printf("event=ready_not_sent error=%q", err)
	}
	// Who is told now connects a moment later at the earliest, and can connect already.
	d.services = newServices(d, listen)
	d.serve(listeners)
	if besides != nil {
		besides(d)
	}
	exit := d.entry.Wait()
	d.mu.Lock()
	d.end()
	recordExit(d.events, exit)
	return exit.Code
}

// installTrust comes before everything of the user, and adds to the variables that it will find.
func installTrust(document *boot.Document) error {
	if document.CA == nil {
		return nil
	}
	if document.Env == nil {
		document.Env = map[string]string{}
	}
	return trust.Install(document.CA, document.Env)
}

func newSupervisor(channel *boot.Channel) (*process.Supervisor, error) {
	return process.NewSupervisor(process.Options{Cgroup: channel.Cgroup, Pids: channel.Pids})
}

func newEnvironment(document *boot.Document) *environment.Environment {
	user := environment.User{UID: document.User.UID, GID: document.User.GID, Groups: document.User.Groups}
	return environment.New(document.Env, document.EnvsFile, document.Cwd, user)
}

// start listens first, so that a taken address is known before user code runs. Answers come later.
func (d *daemon) start(channel *boot.Channel) (listeners []net.Listener, listen []string, err error) {
	if d.supervisor == nil {
		if d.supervisor, err = newSupervisor(channel); err != nil {
			return nil, nil, err
		}
	}
	if listeners, listen, err = boot.Listen(d.document.Listen); err != nil {
		return nil, nil, err
	}
	if d.isolatedHome, err = isolated.Confine(d.document.IsolatedDir); err != nil {
		return nil, nil, err
	}
	d.probes = interpreter.AnswerProbes()
	return listeners, listen, d.startUserCode(channel.Log)
}

// startUserCode runs what comes before the entrypoint, then the entrypoint, then what comes besides.
func (d *daemon) startUserCode(logFile *os.File) error {
	var err error
	if d.log, err = entrypoint.OpenLog(logFile, d.document.LogCapBytes); err != nil {
		return err
	}
	for _, directory := range d.document.Directories {
		if err := entrypoint.MakeDirectory(directory); err != nil {
			return fmt.Errorf("make a directory that the image wants: %w", err)
		}
	}
	runner := hooks.NewRunner(d.supervisor, d.env, d.log.Append)
	schedules, err := hooks.ParseAll(d.document.Periodic)
	if err != nil {
		return err
	}
	if d.document.PreStart != nil {
		if err := runner.Run("pre-start", *d.document.PreStart); err != nil {
			return err
		}
	}
	d.entry, err = entrypoint.Start(d.supervisor, d.env, d.document.Entrypoint, d.log)
	if err == nil {
		runner.Repeat(schedules)
	}
	return err
}

func (d *daemon) serve(listeners []net.Listener) {
	d.server = &http.Server{
		Handler:           tended(d.services.activity.Track(d.services.router)),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
	}
	strict.Protect(d.server)
	for _, listener := range listeners {
		go func() {
			if err := d.server.Serve(strict.Listener(counted{listener, &d.peers})); !errors.Is(err, http.ErrServerClosed) {
				log.Printf("event=listener_failed address=%s error=%q", listener.Addr(), err)
			}
		}()
	}
}

// end kills what is left and lets open streams say how their commands ended.
func (d *daemon) end() {
	d.supervisor.KillAll()
	bounded, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := d.server.Shutdown(bounded); err != nil {
		log.Printf("event=connections_cut error=%q", err)
	}
	d.services.terminals.Settle(farewell)
	if os.Getpid() != 1 {
		d.supervisor.KillAll()
	}
}

func recordExit(events *os.File, exit process.Exit) {
	event := boot.ExitEvent{OOM: exit.OOM}
	if exit.Signal != 0 {
		event.Signal = process.SignalName(exit.Signal)
	} else {
		event.Code = &exit.Code
	}
	if err := boot.RecordExit(events, event); err != nil {
		log.Printf("event=exit_not_recorded error=%q", err)
	}
}

// fail reports a boot that came to nothing, and ends the daemon.
func fail(channel *boot.Channel, cause error) {
	log.Printf("event=boot_failed error=%q", cause)
	code := codeStartFailed
	var invalid *entrypoint.InvalidError
	var unscheduled *hooks.InvalidError
	var occupied *entrypoint.OccupiedError
	switch {
	case errors.As(cause, &occupied):
		code = codeInvalidImage
	case errors.As(cause, &invalid):
		code = codeInvalidEntrypoint
	case errors.As(cause, &unscheduled):
		code = codeInvalidParameter
	}
	if channel != nil {
		if err := channel.Failed(code, cause); err != nil {
			log.Printf("event=failure_not_sent error=%q", err)
		}
	}
	if guest.IsInit(os.Args) {
		guest.PowerOff()
	}
	os.Exit(1)
}

// stopRequest is the body of the stop route.
type stopRequest struct {
	GraceMS *int64 `json:"grace_ms"`
}

// handleStop begins the end; the exit event tells when it is reached.
func (d *daemon) handleStop(w http.ResponseWriter, r *http.Request) {
	var request stopRequest
	if !api.ReadOptionalJSON(w, r, &request) {
		return
	}
	grace := d.document.StopGraceMS
	if request.GraceMS != nil {
		grace = *request.GraceMS
	}
	w.WriteHeader(http.StatusAccepted)
	d.entry.Stop(time.Duration(max(grace, 0)) * time.Millisecond)
}
