// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package command

import (
	"sync"
	"time"

	"casulo.dev/dataplane/internal/output"
)

// Bounds of what is remembered about ended commands.
const (
	keepFor   = 24 * time.Hour
	keepCount = 20000
)

// registry finds commands by id and forgets old ones.
type registry struct {
	store *output.Store

	mu       sync.Mutex
	commands map[string]*Command
	ended    []*Command // oldest first
}

func newRegistry(store *output.Store) *registry {
	r := &registry{store: store, commands: map[string]*Command{}}
	go r.relieve()
	return r
}

func (r *registry) add(c *Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commands[c.ID] = c
}

func (r *registry) find(id string) *Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commands[id]
}

// end starts the time for which an ended command is remembered.
func (r *registry) end(c *Command) {
	r.mu.Lock()
	r.ended = append(r.ended, c)
	var old []*Command
	for len(r.ended) > 0 && (len(r.ended) > keepCount || time.Since(r.ended[0].finished) > keepFor) {
		old = append(old, r.ended[0])
		delete(r.commands, r.ended[0].ID)
		r.ended[0] = nil
		r.ended = r.ended[1:]
	}
	r.mu.Unlock()
	for _, gone := range old {
		gone.forget()
	}
}

// relieve drops the output of the oldest ended commands when the disk gets scarce. Their records stay.
func (r *registry) relieve() {
	for range r.store.Pressure {
		for _, c := range r.snapshot() {
			if r.store.Used() < r.store.Max()/2 {
				break
			}
			c.output().Drop()
		}
	}
}

// running counts those that have not ended.
func (r *registry) running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.commands) - len(r.ended)
}

func (r *registry) snapshot() []*Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Command(nil), r.ended...)
}
