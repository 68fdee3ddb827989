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
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}
	_, err = events.Write(append(line, '\n'))
	return err
}
