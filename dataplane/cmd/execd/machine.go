// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/command"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/guest"
	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/strict"
)

// collectInMachine lets a machine that was just made answer before it first collects garbage.
const collectInMachine = 200

// rehearsals is how often: the second command comes over a connection that is open already.
const rehearsals = 2

// rehearsalLimit bounds how long the daemon may take to answer itself.
const rehearsalLimit = 30 * time.Second

// virtual is a virtual machine with the parts of the daemon that are there before its sandbox is known.
type virtual struct {
	machine    *guest.Machine
	supervisor *process.Supervisor
}

// runMachine is the whole life of process 1 of a virtual machine. It does not return.
func runMachine() {
	setUpLog()
	harden()
	debug.SetGCPercent(collectInMachine)
	machine, err := guest.Start()
	if err != nil {
		fail(nil, err)
	}
	v := &virtual{machine: machine}
	machine.Rehearsal = v.rehearse
	channel, document, err := machine.Await()
	if err != nil {
		fail(channel, err)
	}
	run(channel, document, v.supervisor, func(d *daemon) { go machine.Serve(d.become) })
	guest.PowerOff()
}

// become makes this the daemon of another sandbox, after its machine was restored as that.
func (d *daemon) become(sandboxID, token string, env map[string]string) {
	d.env.Rename(sandboxID, env)
	d.services.router.SetToken(token)
}

// rehearse serves one command on a port of its own, as the daemon will.
func (v *virtual) rehearse() (err error) {
	if v.supervisor == nil {
		if v.supervisor, err = process.NewSupervisor(process.Options{Cgroup: v.machine.Commands()}); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	token := rand.Text()
	router := api.NewRouter(token)
	env := environment.New(nil, "", "/", environment.User{})
	command.New(v.supervisor, env, output.NewStore(spillDirs, spillLimit)).Routes(router)
	tracked := api.NewActivity().Track(router)
	server := &http.Server{Handler: tracked, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}
	strict.Protect(server)
	go func() { _ = server.Serve(strict.Listener(listener)) }() // it ends by being closed
	defer func() { err = errors.Join(err, server.Close()) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range rehearsals {
		if err := runOver(client, "http://"+listener.Addr().String(), token); err != nil {
			return err
		}
	}
	return nil
}

func runOver(client *http.Client, address, token string) error {
	bounded, cancel := context.WithTimeout(context.Background(), rehearsalLimit)
	defer cancel()
	body := strings.NewReader(`{"command":"true"}`)
	request, err := http.NewRequestWithContext(bounded, http.MethodPost, address+"/command", body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(api.TokenHeader, token)
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
}
