// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// SignalName is the name that people know, as "SIGKILL".
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(int(sig))
}
