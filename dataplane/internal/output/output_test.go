// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package output

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newStore(t *testing.T, max int64) *Store {
	return NewStore([]string{t.TempDir()}, max)
}

// numbered is text whose every position can be recognised.
func numbered(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	return data
}

// drain reads what a reader has at hand.
func drain(t *testing.T, r *Reader) (got []byte, state State) {
	t.Helper()
	buffer := make([]byte, 10_000)
	for {
		piece, state, err := r.Next(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if state != More {
			return got, state
		}
		if piece.Offset != r.Position()-int64(len(piece.Data)) {
			t.Errorf("offset %d, position %d", piece.Offset, r.Position())
		}
		got = append(got, piece.Data...)
	}
}

func TestLogKeepsEverythingBelowItsLimit(t *testing.T) {
	store := newStore(t, 10<<20)
	l := NewLog(store, 1<<20)
	data := numbered(300_000)
	for at := 0; at < len(data); at += 777 {
		l.Append(Stdout, data[at:min(at+777, len(data))])
	}
	l.Seal()
	l.Archive()
	got, err := l.Bytes()
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	part := make([]byte, 100)
	if n, err := l.ReadAt(part, 123_456); err != nil || !bytes.Equal(part[:n], data[123_456:123_456+n]) {
		t.Error(n, err)
	}
	if store.Used() == 0 {
		t.Error("nothing was spilled")
	}
	l.Drop()
	if used := store.Used(); used != 0 {
		t.Errorf("%d bytes are still used", used)
	}
	if _, err := l.ReadAt(part, 0); !errors.Is(err, ErrDropped) {
		t.Error(err)
	}
}

func TestLogDropsTheOldestAndSaysSo(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 4*blockSize)
	data := numbered(20 * blockSize)
	l.Append(Stdout, data)
	base, end := l.Range()
	if end != int64(len(data)) || end-base > 6*blockSize || base == 0 {
		t.Errorf("kept from %d to %d", base, end)
	}
	got, err := l.Bytes()
	if err != nil || !bytes.Equal(got, data[base:]) {
		t.Error(len(got), err)
	}
}

func TestWriterWaitsForAnAttachedReader(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 2*blockSize)
	reader := l.Attach()
	data := numbered(10 * blockSize)
	written := make(chan struct{})
	go func() {
		l.Append(Stdout, data)
		l.Seal()
		close(written)
	}()
	select {
	case <-written:
		t.Fatal("the writer did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	var got []byte
	for state := Idle; state != Ended; {
		var more []byte
		more, state = drain(t, reader)
		got = append(got, more...)
		if state == Idle {
			<-reader.Ready()
		}
	}
	<-written
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes", len(got))
	}
}

func TestWriterStaysWithinReachOfAPacedReader(t *testing.T) {
	for _, line := range []string{"y\n", "\r", strings.Repeat("a", 79) + "\n", strings.Repeat("b", 4096)} {
		l := NewLog(newStore(t, 128<<20), 64<<20)
		reader := l.Attach()
		data := []byte(strings.Repeat(line, (20<<20)/len(line)))
		written := make(chan struct{})
		go func() {
			l.Append(Stdout, data)
			l.Seal()
			close(written)
		}()
		time.Sleep(30 * time.Millisecond)
		_, end := l.Range()
		ahead := end + lineCost*lineEnds(data[:end])
		if limit := int64(maxAhead + blockSize*lineCost); ahead > limit || ahead < maxAhead/2 {
			t.Errorf("%q: %d bytes of events ahead", line[:1], ahead)
		}
		size := 0
		for state := Idle; state != Ended; {
			var more []byte
			more, state = drain(t, reader)
			size += len(more)
			if state == Idle {
				<-reader.Ready()
			}
		}
		<-written
		if size != len(data) || reader.lines != l.lines {
			t.Errorf("%q: %d of %d bytes, %d of %d lines", line[:1], size, len(data), reader.lines, l.lines)
		}
	}
}

func TestWriterWithoutReadersIsNotPaced(t *testing.T) {
	l := NewLog(newStore(t, 128<<20), 64<<20)
	l.Append(Stdout, bytes.Repeat([]byte("y\n"), 8<<20))
	if base, end := l.Range(); base != 0 || end != 16<<20 {
		t.Errorf("kept from %d to %d", base, end)
	}
}

func TestDetachedReaderHoldsNobodyBack(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 2*blockSize)
	reader := l.Attach()
	written := make(chan struct{})
	go func() {
		l.Append(Stdout, numbered(10*blockSize))
		close(written)
	}()
	time.Sleep(10 * time.Millisecond)
	reader.Detach()
	<-written
}

func TestRelaxedWriterDoesNotWait(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), blockSize)
	reader := l.Attach()
	data := numbered(2 * blockSize)
	l.Append(Stdout, data[:blockSize/2])
	l.Relax()
	l.Append(Stdout, data[blockSize/2:])
	l.Seal()
	if got, state := drain(t, reader); state != Ended || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), state)
	}
}

func TestReaderEndsAtTheSeal(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 1<<20)
	reader := l.Attach()
	l.Append(Stdout, []byte("before"))
	l.Seal()
	l.Append(Stdout, []byte(" after"))
	if got, state := drain(t, reader); string(got) != "before" || state != Ended {
		t.Errorf("%q %v", got, state)
	}
	if all, _ := l.Bytes(); string(all) != "before after" {
		t.Errorf("%q", all)
	}
}

func TestStreamsStayApart(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 1<<20)
	reader := l.Attach()
	random := rand.New(rand.NewSource(1))
	want := map[Stream]string{}
	for range 5000 {
		stream := Stream(1 + random.Intn(2))
		text := strings.Repeat("x", random.Intn(30)) + "|"
		want[stream] += text
		l.Append(stream, []byte(text))
	}
	l.Seal()
	got := map[Stream]string{}
	buffer := make([]byte, 100)
	for {
		piece, state, err := reader.Next(buffer)
		if err != nil || state == Ended {
			break
		}
		got[piece.Stream] += string(piece.Data)
	}
	if got[Stdout] != want[Stdout] || got[Stderr] != want[Stderr] {
		t.Error("the streams were mixed up")
	}
}

func TestFullStoreGivesUpTheOldestOnly(t *testing.T) {
	for name, store := range map[string]*Store{
		"full": newStore(t, 3*blockSize), "unusable": NewStore([]string{"/no/such/dir"}, 1<<30),
	} {
		l := NewLog(store, 1<<30)
		data := numbered(10 * blockSize)
		l.Append(Stdout, data)
		got, err := l.Bytes()
		if err != nil || !bytes.HasSuffix(data, got) || len(got) < blockSize {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		select {
		case <-store.Pressure:
		default:
			if name == "full" {
				t.Error("no pressure was reported")
			}
		}
	}
}

func TestStoreLeavesRoomOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("a small filesystem cannot be mounted here: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	l := NewLog(NewStore([]string{dir}, 1<<30), 1<<30)
	data := numbered(10 << 20)
	l.Append(Stdout, data)
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil || stat.Bavail == 0 {
		t.Errorf("%d blocks are free, %v", stat.Bavail, err)
	}
	if got, err := l.Bytes(); err != nil || !bytes.HasSuffix(data, got) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestLossyReaderSkips(t *testing.T) {
	l := NewLog(newStore(t, 10<<20), 2*blockSize)
	reader := l.Watch(0)
	data := numbered(10 * blockSize)
	l.Append(Stdout, data)
	got, state := drain(t, reader)
	if state != Idle || len(got) == 0 || !bytes.HasSuffix(data, got) {
		t.Errorf("%d bytes, %v", len(got), state)
	}
}

func TestUnfinished(t *testing.T) {
	for text, want := range map[string]int{"": 0, "a": 0, "é": 0, "\xc3": 1, "a\xe2\x82": 2, "\xf0\x9f\x98": 3, "\xff": 0, "\x80": 0, "\xf0\x9f\x98\x80": 0} {
		if got := Unfinished([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestPumpDrainsWithoutWaitingForWriters(t *testing.T) {
	read, write, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	writer := os.NewFile(uintptr(write), "writer")
	var got atomic.Int64
	pump, err := StartPump(read, func(p []byte) { got.Add(int64(len(p))) })
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		want := strings.Repeat("x", 40_000)
		if _, err := writer.WriteString(want); err != nil {
			t.Fatal(err)
		}
		pump.Drain()
		if got.Load() != int64((round+1)*len(want)) {
			t.Errorf("after round %d there are %d bytes", round, got.Load())
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	<-pump.Closed()
	pump.Drain()
}
