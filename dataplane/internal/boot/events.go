// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"encoding/json"
	"os"
	"time"
)

// ExitEvent is the line that records how the entrypoint ended. Code is nil when a signal ended it.
type ExitEvent struct {
	Event  string `json:"event"`
	Code   *int   `json:"code"`
	Signal string `json:"signal,omitempty"`
	OOM    bool   `json:"oom,omitempty"`
	At     int64  `json:"at"`
}

// RecordExit appends the event to the events file in one write.
func RecordExit(events *os.File, event ExitEvent) error {
	if events == nil {
		return nil
	}
	event.Event, event.At = "exit", time.Now().UnixMilli()
	return appendLine(events, event)
}

// RecordGoingOn appends that the processes of a checkpoint are about to go on: from then on they, and not
// the checkpoint, are the truth about the sandbox.
func RecordGoingOn(events *os.File) error {
	if events == nil {
		return nil
	}
	return appendLine(events, map[string]any{"event": "continued", "at": time.Now().UnixMilli()})
}

func appendLine(events *os.File, event any) error {
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}
	_, err = events.Write(append(line, '\n'))
	return err
}
