// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"runtime"
	"time"
)

// watchHeap reports the largest live heap until it is told to stop.
func watchHeap(stop <-chan struct{}, peak chan<- uint64) {
	var most uint64
	for {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		most = max(most, stats.HeapAlloc)
		select {
		case <-stop:
			peak <- most
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
