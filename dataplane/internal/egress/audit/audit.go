// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package audit writes down every decision, as JSON lines in a file that is rotated, and passes it
// on to whoever follows. What is denied again and again is counted instead of repeated.
package audit

import (
	"encoding/json"
	"log"
	"sync"
	"time"

	"casulo.dev/dataplane/internal/egress/policy"
)

// Record is one line of the log.
type Record struct {
	Time     time.Time `json:"time"`
	Sandbox  string    `json:"sandbox"`
	Kind     string    `json:"kind"` // dns, tcp, tls, http, packet, policy or vault
	Decision string    `json:"decision"`
	Name     string    `json:"name,omitempty"`
	Address  string    `json:"address,omitempty"`
	Port     uint16    `json:"port,omitempty"`
	Protocol string    `json:"protocol,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	Binding  string    `json:"binding,omitempty"` // of a vault, which gave the request credentials
	Status   int       `json:"status,omitempty"`
	Rule     string    `json:"rule,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Up       int64     `json:"bytesUp,omitempty"`
	Down     int64     `json:"bytesDown,omitempty"`
	Seconds  float64   `json:"seconds,omitempty"`
	Repeated int       `json:"repeated,omitempty"`
}

// Judged fills in a decision.
func (r Record) Judged(d policy.Decision) Record {
	r.Decision, r.Rule, r.Reason = "deny", d.By, d.Reason
	if d.Allow {
		r.Decision = "allow"
	}
	return r
}

const (
	quiet     = 30 * time.Second // in which the same denial is written once
	maxQuiet  = 8192             // denials that are remembered
	keptLines = 2000             // for those who ask later
	backlog   = 1024             // of one follower
)

type repeat struct {
	record Record
	since  time.Time
	count  int
}

// Log is one file and its followers.
type Log struct {
	mu        sync.Mutex
	file      *file
	recent    []Record // a ring once it is full
	next      int
	repeats   map[Record]*repeat
	followers map[chan Record]string
	failed    int
}

// Open appends to the file at path, keeping so many old ones.
func Open(path string, maxBytes int64, keep int) (*Log, error) {
	opened, err := openFile(path, maxBytes, keep)
	if err != nil {
		return nil, err
	}
	return &Log{file: opened, repeats: map[Record]*repeat{}, followers: map[chan Record]string{}}, nil
}

// Write notes a record now. It never blocks for long and never fails its caller.
func (l *Log) Write(record Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if record.Decision == "deny" && l.isRepeated(record, now) {
		return
	}
	record.Time = now.UTC()
	l.emit(record)
}

func (l *Log) isRepeated(record Record, now time.Time) bool {
	if earlier := l.repeats[record]; earlier != nil && now.Sub(earlier.since) < quiet {
		earlier.count++
		return true
	}
	if len(l.repeats) >= maxQuiet {
		l.sweep(now)
	}
	if len(l.repeats) < maxQuiet {
		l.repeats[record] = &repeat{record: record, since: now}
	}
	return false
}

// Sweep writes how often what was denied was tried again, once its quiet time is over.
func (l *Log) Sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.file.follow(); err != nil {
		l.failed++
		log.Printf("event=audit_failed error=%q", err)
	}
	l.sweep(time.Now())
}

func (l *Log) sweep(now time.Time) {
	for key, earlier := range l.repeats {
		if now.Sub(earlier.since) < quiet {
			continue
		}
		if earlier.count > 0 {
			again := earlier.record
			again.Time, again.Repeated = now.UTC(), earlier.count
			l.emit(again)
		}
		delete(l.repeats, key)
	}
}

func (l *Log) emit(record Record) {
	line, err := json.Marshal(record)
	if err == nil {
		err = l.file.write(append(line, '\n'))
	}
	if err != nil {
		l.failed++
		log.Printf("event=audit_failed error=%q", err)
	}
	if len(l.recent) < keptLines {
		l.recent = append(l.recent, record)
	} else {
		l.recent[l.next] = record
		l.next = (l.next + 1) % keptLines
	}
	for follower, sandbox := range l.followers {
		if sandbox == "" || sandbox == record.Sandbox {
			select {
			case follower <- record:
			default: // a follower that does not read loses lines; the file has them
			}
		}
	}
}

// Failed is how many records could not be written to the file.
func (l *Log) Failed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Recent lists the last records of a sandbox, or of all when it is "".
func (l *Log) Recent(sandbox string) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recentOf(sandbox)
}

func (l *Log) recentOf(sandbox string) []Record {
	var found []Record
	for i := range l.recent {
		record := l.recent[(l.next+i)%len(l.recent)]
		if sandbox == "" || sandbox == record.Sandbox {
			found = append(found, record)
		}
	}
	return found
}

// Follow is Recent and a channel of what comes after, until stop is called.
func (l *Log) Follow(sandbox string) (recent []Record, next <-chan Record, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	follower := make(chan Record, backlog)
	l.followers[follower] = sandbox
	return l.recentOf(sandbox), follower, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followers, follower)
	}
}

// Close writes what is pending.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(time.Now().Add(quiet))
	return l.file.close()
}
