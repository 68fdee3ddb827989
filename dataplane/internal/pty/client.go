// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/coder/websocket"

	"casulo.dev/dataplane/internal/output"
)

// Times of a connection.
const (
	pingInterval = 30 * time.Second
	silenceLimit = 60 * time.Second
	takeoverWait = 5 * time.Second
)

// statusTakenOver closes the connection of a client that lost the terminal to another.
const statusTakenOver websocket.StatusCode = 4001

// maxFrame bounds what a client may send at once.
const maxFrame = 1 << 20

// client is one WebSocket on a terminal. Only its owner may type; viewers look.
type client struct {
	terminal *Terminal
	socket   *websocket.Conn
	viewer   bool
	silence  *time.Timer
	gone     chan struct{}
}

// acceptOptions let every origin in: the token is what counts. Pings of the client show that it lives.
func (c *client) acceptOptions() *websocket.AcceptOptions {
	c.silence = time.NewTimer(silenceLimit)
	return &websocket.AcceptOptions{
		InsecureSkipVerify: true,
		OnPingReceived: func(context.Context, []byte) bool {
			c.heard()
			return true
		},
	}
}

// converse serves the socket. Its life is not the request's: that one ended with the upgrade.
func (c *client) converse(query connectQuery) {
	ctx := context.Background()
	c.socket.SetReadLimit(maxFrame)
	defer func() {
		// The polite close happened, or the peer is gone: either way nothing is left to say.
		_ = c.socket.CloseNow()
	}()
	if !c.viewer {
		if !c.terminal.enter(c, query.takeover) {
			bounded, cancel := context.WithTimeout(ctx, takeoverWait)
			defer cancel()
			c.refuse(bounded, codeConnected, errors.New("another client is attached and did not leave"))
			return
		}
		defer c.terminal.leave(c)
	}
	c.serve(ctx, query.mode, query.since)
}

// serve runs the connection until either side ends it.
func (c *client) serve(ctx context.Context, mode string, since int64) {
	defer close(c.gone)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.silence.Stop()
	go c.watch(ctx, cancel)
	sh, err := c.terminal.run(mode)
	if err != nil {
		c.refuse(ctx, startCode(err), err)
		return
	}
	reader := c.attach(since)
	defer reader.Detach()
	if c.replay(ctx, reader, sh) != nil {
		return
	}
	go c.ping(ctx)
	go func() {
		defer cancel()
		c.listen(ctx, sh)
	}()
	c.show(ctx, reader, sh)
}

func startCode(err error) string {
	if errors.Is(err, errClosed) {
		return codeGone
	}
	return codeStartFailed
}

// attach lets a viewer miss bytes rather than slow down the terminal.
func (c *client) attach(since int64) *output.Reader {
	if c.viewer {
		return c.terminal.history.Watch(since)
	}
	return c.terminal.history.AttachAt(since)
}

// replay sends what was printed before, and then says that everything from here on is live.
func (c *client) replay(ctx context.Context, reader *output.Reader, sh *shell) error {
	_, end := c.terminal.history.Range()
	buffer := new(frameBuffer)
	for reader.Position() < end {
		room := min(int64(maxPayload), end-reader.Position())
		piece, _, err := reader.Next(buffer.payload()[:room])
		if err != nil {
			return err
		}
		if err := c.socket.Write(ctx, websocket.MessageBinary, buffer.replay(piece)); err != nil {
			return err
		}
	}
	return c.send(ctx, connectedFrame{"connected", c.terminal.ID, sh.mode, end})
}

// show sends output as it comes, and the exit after the last of it.
func (c *client) show(ctx context.Context, reader *output.Reader, sh *shell) {
	buffer := new(frameBuffer)
	for expected := reader.Position(); ; expected = reader.Position() {
		ended := isClosed(sh.ended)
		piece, state, err := reader.Next(buffer.payload())
		switch {
		case err != nil:
			c.refuse(ctx, codeRuntime, err)
			return
		case state == output.More:
			frame := buffer.live(piece)
			if piece.Offset != expected {
				frame = buffer.replay(piece)
			}
			if c.socket.Write(ctx, websocket.MessageBinary, frame) != nil {
				return
			}
		case ended:
			// The client may come back as soon as it knows.
			c.terminal.leave(c)
			if c.send(ctx, exitFrame{"exit", sh.exit.Code}) == nil {
				c.hangUp(websocket.StatusNormalClosure, "process exited")
			}
			return
		default:
			select {
			case <-reader.Ready():
			case <-sh.ended:
			case <-ctx.Done():
				return
			}
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// listen handles what the client sends until the connection ends.
func (c *client) listen(ctx context.Context, sh *shell) {
	for {
		kind, data, err := c.socket.Read(ctx)
		if err != nil {
			return
		}
		c.heard()
		code, err := c.handle(ctx, sh, kind, data)
		if err != nil && c.send(ctx, errorFrame{"error", code, err.Error()}) != nil {
			return
		}
	}
}

// handle acts on one frame. An error is told to the client and ends nothing.
func (c *client) handle(ctx context.Context, sh *shell, kind websocket.MessageType, data []byte) (string, error) {
	if kind == websocket.MessageBinary {
		if len(data) == 0 || data[0] != frameStdin {
			return codeInvalidFrame, errors.New("a binary frame starts with 0x00 and carries input")
		}
		return codeStdinFailed, c.feed(ctx, sh, data[1:])
	}
	m, err := parseMessage(data)
	if err != nil {
		return codeInvalidFrame, err
	}
	switch m.Type {
	case "ping":
		return codeRuntime, c.send(ctx, pongFrame{"pong"})
	case "stdin":
		return codeStdinFailed, c.feed(ctx, sh, []byte(m.Data))
	case "resize":
		return codeRuntime, c.resize(m)
	case "signal":
		return codeInvalidFrame, c.signal(sh, m.Signal)
	}
	return codeInvalidFrame, errors.New("the type " + m.Type + " is not known")
}

var errViewer = errors.New("this connection only views the terminal")

// feed does not wait for the shell to read.
func (c *client) feed(ctx context.Context, sh *shell, data []byte) error {
	if c.viewer {
		return errViewer
	}
	return sh.typed.add(data, func(err error) {
		// A client that left has no use for the news.
		_ = c.send(ctx, errorFrame{"error", codeStdinFailed, err.Error()})
	})
}

func (c *client) resize(m message) error {
	wanted, given := m.size()
	if !given || c.viewer {
		return nil
	}
	return c.terminal.resize(wanted)
}

func (c *client) signal(sh *shell, name string) error {
	sig, known := signals[name]
	switch {
	case c.viewer:
		return errViewer
	case !known:
		return errors.New("the signal " + name + " cannot be sent")
	}
	sh.signal(sig)
	return nil
}

func (c *client) send(ctx context.Context, frame any) error {
	text, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return c.socket.Write(ctx, websocket.MessageText, text)
}

// refuse ends the connection after saying why.
func (c *client) refuse(ctx context.Context, code string, cause error) {
	if c.send(ctx, errorFrame{"error", code, cause.Error()}) == nil {
		c.hangUp(websocket.StatusInternalError, code)
	}
}

// hangUp closes the connection. A peer that does not answer the close has left already.
func (c *client) hangUp(status websocket.StatusCode, reason string) {
	_ = c.socket.Close(status, reason)
}

// watch ends the connection of a client that is silent for too long.
func (c *client) watch(ctx context.Context, end func()) {
	select {
	case <-c.silence.C:
		end()
	case <-ctx.Done():
	}
}

// heard notes that the client is there.
func (c *client) heard() { c.silence.Reset(silenceLimit) }

// ping keeps middleboxes from forgetting the connection, and finds out when the client is gone.
func (c *client) ping(ctx context.Context) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if c.socket.Ping(ctx) == nil {
				c.heard()
			}
		case <-ctx.Done():
			return
		}
	}
}
