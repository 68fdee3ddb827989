// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sandbox

import (
	"sync"
	"time"
)

// Limits bound what one sandbox can make this process do.
type Limits struct {
	Connections          int `json:"connections"` // open at once
	ConnectionsPerSecond int `json:"connectionsPerSecond"`
	QueriesPerSecond     int `json:"queriesPerSecond"`
	Addresses            int `json:"addresses"` // learned and not yet forgotten
}

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
