// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sandbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound what one sandbox can make this process do.
type Limits struct {
	Connections          int `json:"connections"` // open at once
	ConnectionsPerSecond int `json:"connectionsPerSecond"`
	QueriesPerSecond     int `json:"queriesPerSecond"`
	Addresses            int `json:"addresses"` // learned and not yet forgotten
}

// questionsLast is for how long the kernel remembers a question over UDP.
const questionsLast = 30

// Flows are all that the kernel may have to follow for one sandbox, so that none fills its table.
func (l Limits) Flows() int { return l.Connections + questionsLast*l.QueriesPerSecond }

// share bounds what one sandbox has of something that all use.
type share struct{ used atomic.Int32 }

func (s *share) take(most int32) bool {
	if s.used.Add(1) > most {
		s.used.Add(-1)
		return false
	}
	return true
}

func (s *share) give() { s.used.Add(-1) }

// What one sandbox may have of the name server's room.
const (
	questionsAtOnce = 64
	nameStreams     = 16
)

// BeginQuestion admits one more question that is being answered; EndQuestion follows.
func (s *Sandbox) BeginQuestion() bool { return s.asking.take(questionsAtOnce) }

// EndQuestion makes room for another.
func (s *Sandbox) EndQuestion() { s.asking.give() }

// BeginStream admits one more TCP connection to the name server; EndStream follows.
func (s *Sandbox) BeginStream() bool { return s.streams.take(nameStreams) }

// EndStream makes room for another.
func (s *Sandbox) EndStream() { s.streams.give() }

// bucket lets through so many a second, and twice as many at once.
type bucket struct {
	mu     sync.Mutex
	rate   float64
	tokens float64
	last   time.Time
}

func newBucket(rate int) *bucket {
	return &bucket{rate: float64(rate), tokens: float64(2 * rate), last: time.Now()}
}

func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(2*b.rate, b.tokens+now.Sub(b.last).Seconds()*b.rate)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
