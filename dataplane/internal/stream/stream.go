// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package stream

import (
	"context"
	"net/http"
	"time"

	"casulo.dev/dataplane/internal/output"
)

// FramingHeader chooses how output bytes become events.
const FramingHeader = "EXECD-STREAM-FRAMING"

// heartbeat is how often a silent stream shows that it is alive.
const heartbeat = 3 * time.Second

// flushSize is when events are handed to the connection although more are at hand.
const flushSize = 32 << 10

// readSize is how much output one event may carry in raw framing.
const readSize = 32 << 10

// buffer collects events until they are worth a write. After the first error it swallows the rest.
type buffer struct {
	bytes []byte
	to    http.ResponseWriter
	err   error
}

// add takes the buffer back after an append and passes it on when it is long.
func (b *buffer) add(appended []byte) {
	b.bytes = appended
	if len(b.bytes) >= flushSize {
		b.write()
	}
}

func (b *buffer) write() {
	if b.err == nil && len(b.bytes) > 0 {
		_, b.err = b.to.Write(b.bytes)
	}
	b.bytes = b.bytes[:0]
}

func (b *buffer) flush() {
	b.write()
	if b.err == nil {
		b.err = http.NewResponseController(b.to).Flush()
	}
}

// Stream is one answer in the form of events. One goroutine uses it.
type Stream struct {
	out     buffer
	framing framing
	chunk   []byte
	reset   bool
}

// Open commits the answer to a stream: no JSON error is possible afterwards.
func Open(w http.ResponseWriter, r *http.Request) *Stream {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	header.Set("Connection", "keep-alive")
	header.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &Stream{out: buffer{to: w}, framing: &lineFraming{}}
	if r.Header.Get(FramingHeader) == "raw" {
		s.framing = &rawFraming{}
	}
	return s
}

// Init sends the first event: the id of the execution or the session.
func (s *Stream) Init(id string) {
	s.out.add(appendText(s.out.bytes, "init", id))
	s.out.flush()
}

// Follow sends output as it arrives and returns when the log ended. An error means that nobody
// listens any more or that output was lost; the stream is then over, and the command goes on.
func (s *Stream) Follow(ctx context.Context, reader *output.Reader) error {
	defer s.framing.release()
	s.chunk = make([]byte, readSize)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		piece, state, err := reader.Next(s.chunk)
		switch {
		case err != nil:
			return err
		case state == output.More:
			s.framing.piece(&s.out, piece)
		case state == output.Ended:
			s.framing.finish(&s.out)
			return s.out.err
		default:
			s.await(ctx, reader, beat)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if s.out.err != nil {
			return s.out.err
		}
	}
}

// await flushes what was collected and waits for more, for a heartbeat, or for the client to leave.
func (s *Stream) await(ctx context.Context, reader *output.Reader, beat *time.Ticker) {
	s.out.flush()
	select {
	case <-reader.Ready():
		beat.Reset(heartbeat)
	case <-beat.C:
		s.out.add(appendText(s.out.bytes, "ping", "pong"))
	case <-ctx.Done():
	}
}

// MarkReset makes the terminal event say that the session goes on with a new shell.
func (s *Stream) MarkReset() { s.reset = true }

// Complete ends the stream of a command that succeeded. The terminal event leaves together with
// the end of the answer.
func (s *Stream) Complete(took time.Duration) {
	s.out.add(appendComplete(s.out.bytes, took, s.reset))
	s.out.write()
}

// Fail ends the stream of a command that did not succeed.
func (s *Stream) Fail(failure Failure) {
	failure.reset = s.reset
	s.out.add(appendFailure(s.out.bytes, failure))
	s.out.write()
}
