// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/guest"
	"casulo.dev/dataplane/internal/strict"
)

// rehearsalLimit bounds how long the daemon may take to answer itself.
const rehearsalLimit = 10 * time.Second

// runMachine is the whole life of process 1 of a virtual machine. It does not return.
func runMachine() {
	setUpLog()
	harden()
	machine, err := guest.Start()
	if err != nil {
		fail(nil, err)
	}
	machine.Rehearsal = rehearse
	channel, document, err := machine.Await()
	if err != nil {
		fail(channel, err)
	}
	run(channel, document, nil, func(d *daemon) { go machine.Serve(d.become) })
	guest.PowerOff()
}

// become makes this the daemon of another sandbox, after its machine was restored as that.
func (d *daemon) become(sandboxID, token string, env map[string]string) {
	d.env.Rename(sandboxID, env)
	d.services.router.SetToken(token)
}

// rehearse serves one request on a port of its own, as the daemon will.
func rehearse() (err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	router := api.NewRouter("")
	router.Open("GET /ping", handlePing)
	server := &http.Server{Handler: newTrimmer(router), ReadHeaderTimeout: headerTimeout}
	strict.Protect(server)
	go func() { _ = server.Serve(strict.Listener(listener)) }() // it ends by being closed
	defer func() { err = errors.Join(err, server.Close()) }()
	bounded, cancel := context.WithTimeout(context.Background(), rehearsalLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(bounded, http.MethodGet, "http://"+listener.Addr().String()+"/ping", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("answer a request: %w", err)
	}
	return answer.Body.Close()
}
