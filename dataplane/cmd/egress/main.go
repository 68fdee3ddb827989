// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Command egress enforces the network policies of all sandboxes of one server: it answers their
// names, judges their connections and keeps the packet filter's rules. It runs beside the server,
// lives longer than it, and what it has set up stays closed when it dies. With -sidecar it does the
// same for one sandbox with which it shares a network namespace, and nobody else tells it anything.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/version"
)

const (
	collectAtPercent = 100
	softMemoryLimit  = 128 << 20
)

func main() {
	file := flag.String("config", "", "file with the configuration, JSON")
	beside := flag.Bool("sidecar", false, "serve the network namespace in which this runs; configured by the environment")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println(version.Version)
		return
	}
	log.SetFlags(log.LstdFlags | log.Lmicroseconds | log.LUTC)
	log.SetOutput(events{os.Stderr})
	if err := start(*file, *beside); err != nil {
		log.Printf("event=failed error=%q", err)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(file string) (config Config, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return config, err
	}
	if err := json.Unmarshal(content, &config); err != nil {
		return config, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

func start(file string, beside bool) error {
	config, err := Config{}, error(nil)
	if beside {
		config, err = sidecarConfig()
		config.own = ownMark()
	} else {
		config, err = read(file)
	}
	if err != nil {
		return err
	}
	debug.SetGCPercent(collectAtPercent)
	debug.SetMemoryLimit(softMemoryLimit)
	raiseFileLimit()
	if err := keepMemoryPrivate(); err != nil {
		return err
	}
	if config.Nice != 0 {
		goFirst(config.Nice)
	}
	lock, err := claim(config.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	running, err := open(config)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		running.end(false)
	}()
	return running.serve()
}

// claim makes sure that one process at a time writes the table.
func claim(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another process serves these sandboxes: %w", err)
	}
	return lock, nil
}

// goFirst lets what all sandboxes wait for run before what one of them does. The kernel knows only
// threads here; those to come inherit it.
func goFirst(nice int) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		log.Printf("event=no_priority error=%q", err)
		return
	}
	for _, each := range threads {
		if id, err := strconv.Atoi(each.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, nice) // a thread that has just ended needs none
		}
	}
}

// keepMemoryPrivate keeps credentials out of core dumps, and other programs of the same user out of
// this one's memory.
func keepMemoryPrivate() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

func raiseFileLimit() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
}
