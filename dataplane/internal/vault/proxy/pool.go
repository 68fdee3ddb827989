// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"crypto/x509"
	"sync"
	"sync/atomic"
	"time"

	"casulo.dev/dataplane/internal/egress/own"
)

const (
	mostRequests = 512 // of one sandbox at once
	mostFlows    = 256 // the same of connections
	mostRoutes   = 256 // of one sandbox
	poolIdle     = 2 * time.Minute
)

// pool is the connections to servers that one sandbox's requests use.
type pool struct {
	sandbox  string
	control  own.Control
	requests atomic.Int64

	mu     sync.Mutex
	routes map[key]*route

	flows int // guarded by pools
	left  time.Time
}

// enter counts a request in, unless there are too many.
func (p *pool) enter() bool {
	if p.requests.Add(1) > mostRequests {
		p.requests.Add(-1)
		return false
	}
	return true
}

func (p *pool) leave() { p.requests.Add(-1) }

// route is the way to a server; other roots than before make it a new one.
func (p *pool) route(k key, roots *x509.CertPool) *route {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.routes[k]
	if known != nil && known.roots == roots {
		known.used = time.Now()
		return known
	}
	if known != nil {
		known.close()
	} else if len(p.routes) >= mostRoutes {
		p.forgetOldest()
	}
	made := newRoute(k, roots, p.control)
	p.routes[k] = made
	return made
}

func (p *pool) forgetOldest() {
	var oldest *route
	for _, each := range p.routes {
		if oldest == nil || each.used.Before(oldest.used) {
			oldest = each
		}
	}
	oldest.close()
	delete(p.routes, oldest.key)
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.routes {
		each.close()
	}
	clear(p.routes)
}

// pools are those of all sandboxes.
type pools struct {
	control own.Control
	mu      sync.Mutex
	known   map[string]*pool
}

// enter finds a sandbox's pool for one more connection; nil when it has too many.
func (all *pools) enter(sandbox string) *pool {
	all.mu.Lock()
	defer all.mu.Unlock()
	found := all.known[sandbox]
	if found == nil {
		found = &pool{sandbox: sandbox, control: all.control, routes: map[key]*route{}}
		all.known[sandbox] = found
	}
	if found.flows >= mostFlows {
		return nil
	}
	found.flows++
	return found
}

func (all *pools) leave(p *pool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p.flows--
	p.left = time.Now()
}

func (all *pools) sweep(now time.Time) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for id, each := range all.known {
		if each.flows == 0 && now.Sub(each.left) > poolIdle {
			each.close()
			delete(all.known, id)
		}
	}
}
