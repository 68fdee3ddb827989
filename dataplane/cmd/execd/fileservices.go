// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"net/url"
	"path/filepath"
	"strconv"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/files"
	"casulo.dev/dataplane/internal/metrics"
	"casulo.dev/dataplane/internal/portproxy"
)

// addFileServices registers files, metrics and the proxy. listen holds the addresses the daemon itself answers on.
func addFileServices(router *api.Router, d *daemon, listen []string) *files.Service {
	service := files.New(files.Config{
		SandboxID: d.document.SandboxID,
		Base:      d.env.Cwd(),
		Lookup:    func(name string) (string, bool) { return d.env.Compose(nil).Lookup(name) },
		UID:       d.document.User.UID,
		GID:       d.document.User.GID,
		StateDirs: stateDirs(d.document.EnvsFile),
	})
	service.Routes(router)
	metrics.New(service.OwnerName).Routes(router)
	portproxy.New(portsOf(listen)...).Routes(router)
	return service
}

// stateDirs are where the daemon may keep a file of its own: beside the file of variables, which is writable.
func stateDirs(envsFile string) []string {
	dirs := []string{"/var/tmp", "/tmp"}
	if envsFile != "" {
		dirs = append([]string{filepath.Dir(envsFile)}, dirs...)
	}
	return dirs
}

// portsOf leaves out addresses without a port, such as unix sockets.
func portsOf(listen []string) []int {
	var ports []int
	for _, text := range listen {
		address, err := url.Parse(text)
		if err != nil {
			continue
		}
		if port, err := strconv.Atoi(address.Port()); err == nil {
			ports = append(ports, port)
		}
	}
	return ports
}
