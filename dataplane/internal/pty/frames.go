// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/output"
)

// First bytes of binary frames.
const (
	frameStdin  = 0x00
	frameStdout = 0x01
	frameStderr = 0x02
	frameReplay = 0x03
)

// Codes of error frames, and of refusals before the upgrade.
const (
	codeStartFailed  = "START_FAILED"
	codeStdinFailed  = "STDIN_WRITE_FAILED"
	codeInvalidFrame = "INVALID_FRAME"
	codeConnected    = "ALREADY_CONNECTED"
	codeGone         = "SESSION_GONE"
	codeRuntime      = "RUNTIME_ERROR"
)

// maxPayload is how many bytes of output one frame carries.
const maxPayload = 32 << 10

// replayHead is the length of a replay frame's head: its kind and an offset.
const replayHead = 1 + 8

// frameBuffer holds one frame: room for the longest head, then the payload.
type frameBuffer [replayHead + maxPayload]byte

func (b *frameBuffer) payload() []byte { return b[replayHead:] }

// live makes a frame of output in b's payload.
func (b *frameBuffer) live(p output.Piece) []byte {
	frame := b[replayHead-1 : replayHead+len(p.Data)]
	frame[0] = frameStdout
	if p.Stream == output.Stderr {
		frame[0] = frameStderr
	}
	return frame
}

// replay makes a frame that says where its bytes belong.
func (b *frameBuffer) replay(p output.Piece) []byte {
	b[0] = frameReplay
	binary.BigEndian.PutUint64(b[1:replayHead], uint64(p.Offset))
	return b[:replayHead+len(p.Data)]
}

// message is every text frame that a client may send.
type message struct {
	Type   string `json:"type"`
	Data   string `json:"data"`
	Cols   int    `json:"cols"`
	Rows   int    `json:"rows"`
	Signal string `json:"signal"`
}

func parseMessage(text []byte) (message, error) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("a text frame is a JSON object: %w", err)
	}
	return m, nil
}

// maxCells is what the kernel's window size can hold.
const maxCells = 1<<16 - 1

// size is the wanted size, or false when the message names none that a terminal can have.
func (m message) size() (size, bool) {
	if m.Cols <= 0 || m.Rows <= 0 || m.Cols > maxCells || m.Rows > maxCells {
		return size{}, false
	}
	return size{cols: uint16(m.Cols), rows: uint16(m.Rows)}, true
}

var signals = map[string]syscall.Signal{
	"SIGINT": unix.SIGINT, "SIGTERM": unix.SIGTERM, "SIGKILL": unix.SIGKILL,
	"SIGQUIT": unix.SIGQUIT, "SIGHUP": unix.SIGHUP,
}

// Text frames that we send.
type (
	connectedFrame struct {
		Type      string `json:"type"`
		SessionID string `json:"session_id"`
		Mode      string `json:"mode"`
		// Offset is that of the first live byte.
		Offset int64 `json:"offset"`
	}
	exitFrame struct {
		Type     string `json:"type"`
		ExitCode int    `json:"exit_code"`
	}
	errorFrame struct {
		Type  string `json:"type"`
		Code  string `json:"code"`
		Error string `json:"error"`
	}
	pongFrame struct {
		Type string `json:"type"`
	}
)
