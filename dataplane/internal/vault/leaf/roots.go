// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package leaf

import (
	"crypto/sha256"
	"crypto/x509"
	"sync"
)

const mostPools = 16

var pools = struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]*x509.CertPool
}{known: map[[sha256.Size]byte]*x509.CertPool{}}

// Roots are the host's own and those of a PEM text; nil is the host's alone. Equal texts give the
// same pool, since most sandboxes of a server share one.
func Roots(text string) (*x509.CertPool, error) {
	if text == "" {
		return nil, nil
	}
	digest := sha256.Sum256([]byte(text))
	pools.mu.Lock()
	defer pools.mu.Unlock()
	if known := pools.known[digest]; known != nil {
		return known, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a host without roots trusts these alone
	}
	if !pool.AppendCertsFromPEM([]byte(text)) {
		return nil, errRoots
	}
	if len(pools.known) >= mostPools {
		clear(pools.known)
	}
	pools.known[digest] = pool
	return pool, nil
}
