// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package version names the build and what it can do.
package version

// Version is set by the linker.
var Version = "dev"

// Features lists the abilities that a client may rely on beyond the base contract.
var Features = []string{
	"code",
	"code.files",
	"command.argv",
	"command.logs.foreground",
	"command.stdin",
	"files.identity",
	"files.tar",
	"files.watch",
	"isolated.commit",
	"metrics.processes",
	"pty.viewers",
	"session.persistent",
	"stream.raw",
}
