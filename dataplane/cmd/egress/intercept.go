// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"casulo.dev/dataplane/internal/egress/entry"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault/proxy"
)

// interceptor leads connections to bound hosts from the entry to the proxy.
type interceptor struct{ to *proxy.Proxy }

// Serve implements entry.Interceptor.
func (i interceptor) Serve(f *entry.Flow) {
	i.to.Serve(&proxy.Flow{Sandbox: f.Sandbox.ID, Client: f.Client, Reader: f.Reader, Destination: f.Destination, Name: f.Name,
		Vault: f.Sandbox.Vault,
		Begin: func(q proxy.Query, cancel func()) (policy.Decision, func()) {
			return f.Begin(q.Name, q.Method, q.Path, q.Bound, cancel)
		}})
}
