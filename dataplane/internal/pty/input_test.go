// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package pty

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
)

func TestInputArrivesInOrder(t *testing.T) {
	reader, writer := io.Pipe()
	in, ended := newInput(writer), make(chan struct{})
	defer close(ended)
	go in.run(ended)
	want := bytes.Repeat([]byte("0123456789"), 30_000)
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 7001)
		if err := in.add(rest[:n], func(err error) { t.Error(err) }); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(reader, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the input was changed: %v", err)
	}
}

func TestInputIsBounded(t *testing.T) {
	reader, writer := io.Pipe()
	in, ended := newInput(writer), make(chan struct{})
	defer close(ended)
	go in.run(ended)
	failed := make(chan error, 2)
	report := func(err error) { failed <- err }
	piece, taken := make([]byte, 1<<20-1), 0
	for ; in.add(piece, report) == nil; taken += len(piece) {
		if taken > inputLimit {
			t.Fatal("there is no limit")
		}
	}
	if taken < inputLimit-len(piece) {
		t.Errorf("full after %d bytes", taken)
	}
	if _, err := io.CopyN(io.Discard, reader, int64(len(piece))); err != nil {
		t.Fatal(err)
	}
	if err := in.add(piece[:1<<19], report); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	gone := errors.New("gone")
	if err := reader.CloseWithError(gone); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !errors.Is(err, gone) || !errors.Is(in.add([]byte("x"), report), gone) {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the failure is not told")
	}
}
