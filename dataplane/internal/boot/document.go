// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package boot owns the handshake with the starter: one message with descriptors in, one answer out,
// and afterwards only lines in the events file.
package boot

import "casulo.dev/dataplane/internal/trust"

// Document is what the starter asks for.
type Document struct {
	SandboxID   string            `json:"sandbox_id"`
	AccessToken string            `json:"access_token"`
	Listen      []string          `json:"listen"`
	Entrypoint  []string          `json:"entrypoint"`
	Env         map[string]string `json:"env"`
	Cwd         string            `json:"cwd"`
	User        User              `json:"user"`
	// Directories are made when they are missing, as engines do for the volumes of an image.
	Directories []string `json:"directories"`
	EnvsFile    string   `json:"envs_file"`
	LogCapBytes int64    `json:"log_cap_bytes"`
	StopGraceMS int64    `json:"stop_grace_ms"`
	PreStart    *Hook    `json:"pre_start"`
	Periodic    []Hook   `json:"periodic"`
	// IsolatedDir is where isolated sessions keep what they write; empty in sandboxes without them.
	IsolatedDir string `json:"isolated_dir"`
	// CA is trusted by the programs inside besides the public authorities; nil where nobody intercepts.
	CA *trust.Authority `json:"ca"`
}

// User owns the processes of the sandbox unless a request names another.
type User struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Groups are the supplementary ones; without the member they are those of the account.
	Groups []uint32 `json:"groups"`
}

// Hook is a command that the daemon runs by itself: once before the entrypoint, or, with a name and a
// schedule, again and again.
type Hook struct {
	Name           string   `json:"name"`
	Schedule       string   `json:"schedule"`
	Command        []string `json:"command"`
	TimeoutSeconds float64  `json:"timeout_seconds"`
}
