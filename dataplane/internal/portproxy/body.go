// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	handOver   = 50 * time.Millisecond
	drainTime  = 2 * time.Second
	drainPause = 250 * time.Millisecond // a caller silent for so long is waiting, not sending
)

// requestBody is the caller's body on its way to the application, which may answer before it has read all of it. What
// is left then must never be taken for the next request, so the connection is given up; and it must not be reset while
// the caller is still sending, or he would lose the answer. So the rest is read for a while first.
type requestBody struct {
	source   io.Reader
	length   int64 // -1 when unknown
	onDemand bool  // the caller sends it only when told to go on

	mu     sync.Mutex // held while the transport reads
	count  int64
	ended  bool
	closed chan struct{}
	once   sync.Once
}

func newRequestBody(r *http.Request) *requestBody {
	return &requestBody{
		source: r.Body, length: r.ContentLength, onDemand: r.Header.Get("Expect") != "", closed: make(chan struct{}),
	}
}

// Read implements io.Reader for the transport.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	default:
	}
	n, err := b.source.Read(p)
	b.count += int64(n)
	b.ended = b.ended || errors.Is(err, io.EOF) || b.count == b.length
	return n, err
}

// Close implements io.Closer: the transport has done with the body. The rest stays where it is.
func (b *requestBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// complete reports whether the application was sent everything. While the transport waits for more it is not.
func (b *requestBody) complete() bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	return b.ended
}

// settle reads on after the answer is out. A transport that does not let go is waiting for a caller who sends nothing:
// then there is nothing to read either.
func (b *requestBody) settle(w http.ResponseWriter) {
	if b.complete() {
		return
	}
	select {
	case <-b.closed:
	case <-time.After(handOver):
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 && b.onDemand {
		return // nothing was asked for, so nothing is coming
	}
	control := http.NewResponseController(w)
	err := control.Flush()
	buffer := make([]byte, copyBuffer)
	// Whatever ends this, the connection is closed next.
	for end := time.Now().Add(drainTime); err == nil && time.Now().Before(end); {
		if err = control.SetReadDeadline(time.Now().Add(drainPause)); err == nil {
			_, err = b.source.Read(buffer)
		}
	}
}
