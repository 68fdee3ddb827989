// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package thread lends out operating system threads for changes that concern one thread only, such
// as its credentials or its namespaces, and that nobody else may ever inherit.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Throwaway runs work on a thread that ends with it: a goroutine that returns while locked takes its
// thread along. The process's main thread cannot end, so it is never used. A panic of work is passed on.
func Throwaway(work func()) {
	done := make(chan any)
	var start func()
	start = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			moved := make(chan struct{})
			go func() { start(); close(moved) }()
			<-moved
			runtime.UnlockOSThread()
			return
		}
		defer func() { done <- recover() }()
		work()
	}
	go start()
	if reason := <-done; reason != nil {
		panic(reason)
	}
}
