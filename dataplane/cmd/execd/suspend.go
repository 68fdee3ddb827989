// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/boot"
	"casulo.dev/dataplane/internal/interpreter"
	"casulo.dev/dataplane/internal/version"
)

// bootFD is where the starter talks to us, also the one that continues us from a checkpoint.
const bootFD = 0

// tellLimit is how long the starter may take to hang up.
const tellLimit = 5 * time.Second

const suspended = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// handleSuspend makes the sandbox fit for a checkpoint of its memory: nothing runs, and no connection or
// descriptor of the host is open. The end of this connection says that it is so. A process that uses
// TCP cannot be kept by the kernels that make checkpoints, so there must be none.
func (d *daemon) handleSuspend(w http.ResponseWriter, _ *http.Request) {
	if err := unix.Kill(-1, unix.SIGSTOP); err != nil && err != unix.ESRCH {
		api.WriteError(w, http.StatusInternalServerError, "SUSPEND_FAILED", err.Error())
		return
	}
	if others := boot.ForeignSockets(append([]string{interpreter.ProbeAddress}, d.document.Listen...)); others > 0 {
		d.wake()
		api.WriteError(w, http.StatusConflict, "CONNECTIONS_OPEN", "processes of the sandbox use TCP sockets")
		return
	}
	last, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		d.wake()
		api.WriteError(w, http.StatusInternalServerError, "SUSPEND_FAILED", err.Error())
		return
	}
	go d.suspend(last)
}

func (d *daemon) suspend(last net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.record(nil, nil), tell(last), d.closeListeners()); err != nil {
		log.Printf("event=not_all_closed error=%q", err)
	}
	channel, document, err := d.await()
	if err == nil {
		err = d.resume(channel, document)
	}
	if err != nil {
		fail(channel, err)
	}
}

// await goes on as the sandbox that it was when the server says, by a signal, that there is no checkpoint.
// Nobody inside can send it, since everything else stands still.
func (d *daemon) await() (*boot.Channel, *boot.Document, error) {
	calledOff := make(chan os.Signal, 1)
	signal.Notify(calledOff, unix.SIGCONT)
	defer signal.Stop(calledOff)
	channel, document, err := boot.Await(bootFD, calledOff)
	if errors.Is(err, boot.ErrCalledOff) {
		log.Print("event=checkpoint_called_off")
		return &boot.Channel{}, d.document, nil
	}
	return channel, document, err
}

// tell answers, and waits until the starter has read it and hung up.
func tell(starter net.Conn) error {
	_, err := io.WriteString(starter, suspended)
	err = errors.Join(err, starter.SetReadDeadline(time.Now().Add(tellLimit)))
	_, gone := io.Copy(io.Discard, starter)
	return errors.Join(err, gone)
}

// closeListeners also resets what was accepted, the starter's last connection included, which tells it.
func (d *daemon) closeListeners() error {
	err := errors.Join(d.peers.reset(), d.server.Close())
	if d.probes != nil {
		err = errors.Join(err, d.probes.Close())
	}
	return err
}

// resume goes on, perhaps as another sandbox on another host.
func (d *daemon) resume(channel *boot.Channel, document *boot.Document) error {
	d.become(document.SandboxID, document.AccessToken, document.Env)
	listeners, listen, err := boot.Listen(document.Listen)
	if err = errors.Join(err, d.record(channel.Events, channel.Log)); err != nil {
		return err
	}
	d.peers.begin()
	d.serve(listeners)
	d.probes = interpreter.AnswerProbes()
	if err := boot.RecordGoingOn(d.events); err != nil {
		return err
	}
	d.wake()
	return channel.Ready(version.Version, listen)
}

func (d *daemon) wake() {
	if err := unix.Kill(-1, unix.SIGCONT); err != nil && err != unix.ESRCH {
		log.Printf("event=not_continued error=%q", err)
	}
}

// record takes the files of another starter, and closes the earlier ones.
func (d *daemon) record(events, logFile *os.File) error {
	earlier := d.events
	d.events = events
	err := d.log.Continue(logFile)
	if earlier != nil {
		err = errors.Join(err, earlier.Close())
	}
	return err
}
