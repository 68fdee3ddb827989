// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package inject

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"casulo.dev/dataplane/internal/vault"
)

// longestBuffered is up to where a body whose length was told is replaced as a whole, so that its
// length can be told too. A longer one is sent in chunks.
const longestBuffered = 1 << 20

// ErrEncoded is the error for bodies in which nothing can be found.
var ErrEncoded = errors.New("placeholders cannot be replaced in a body with a Content-Encoding; send it without")

// Body replaces placeholders in a request's body as it passes.
func Body(r *http.Request, b *vault.Binding) error {
	if r.Body == nil || r.Body == http.NoBody || b == nil || !b.Replaces(vault.InBody) {
		return nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return ErrEncoded
	}
	replacing := &replacer{from: r.Body, pairs: pairsFor(b, vault.InBody, bodyEncoding(r.Header.Get("Content-Type")))}
	if r.ContentLength < 0 || r.ContentLength > longestBuffered {
		r.Body, r.ContentLength = replacing, -1
		r.Header.Del("Content-Length")
		return nil
	}
	whole, err := io.ReadAll(io.LimitReader(replacing, longestBuffered+1))
	if err != nil {
		return fmt.Errorf("the body did not arrive in full")
	}
	if len(whole) > longestBuffered { // it has grown, as far as the client likes
		r.Body, r.ContentLength = &buffered{io.MultiReader(bytes.NewReader(whole), replacing), r.Body}, -1
		r.Header.Del("Content-Length")
		return nil
	}
	r.Body = &buffered{bytes.NewReader(whole), r.Body}
	r.ContentLength = int64(len(whole))
	r.Header.Set("Content-Length", strconv.Itoa(len(whole)))
	return nil
}

type buffered struct {
	io.Reader
	io.Closer
}

const (
	pieceSize = 16 << 10
	mostReady = 256 << 10 // of what a piece grows to, which may be thousands of times its size
)

// replacer holds back no more than what may be the beginning of a placeholder.
type replacer struct {
	from   io.ReadCloser
	pairs  []pair // the longest first
	held   []byte
	ready  []byte
	room   []byte
	more   bool // held has placeholders that are still to be replaced
	failed error
}

func (r *replacer) Read(p []byte) (int, error) {
	for len(r.ready) == 0 {
		if r.failed != nil && !r.more {
			return 0, r.failed
		}
		r.fill()
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

func (r *replacer) fill() {
	if r.room == nil {
		r.room = make([]byte, pieceSize)
	}
	n, err := 0, r.failed
	if !r.more {
		n, err = r.from.Read(r.room)
		r.failed = err
	}
	r.more = false
	if err != nil && !errors.Is(err, io.EOF) {
		return
	}
	data := append(r.held, r.room[:n]...)
	var out []byte
	for {
		at, found := r.next(data)
		if at < 0 {
			break
		}
		if err == nil && r.mayGrow(data[at:], len(found.old)) {
			r.ready, r.held = append(out, data[:at]...), bytes.Clone(data[at:])
			return
		}
		out = append(append(out, data[:at]...), found.new...)
		data = data[at+len(found.old):]
		if len(out) >= mostReady {
			r.ready, r.held, r.more = out, bytes.Clone(data), true
			return
		}
	}
	keep := 0
	if err == nil {
		keep = r.beginning(data)
	}
	r.ready, r.held = append(out, data[:len(data)-keep]...), bytes.Clone(data[len(data)-keep:])
}

// next is the first placeholder, the longest of those that begin at the same place.
func (r *replacer) next(data []byte) (at int, found pair) {
	at = -1
	for _, each := range r.pairs {
		if here := bytes.Index(data, []byte(each.old)); here >= 0 && (at < 0 || here < at) {
			at, found = here, each
		}
	}
	return at, found
}

// mayGrow tells whether the data could become a placeholder longer than the one found.
func (r *replacer) mayGrow(data []byte, length int) bool {
	for _, each := range r.pairs {
		if len(each.old) > length && len(data) < len(each.old) && strings.HasPrefix(each.old, string(data)) {
			return true
		}
	}
	return false
}

// beginning is the length of the longest end of data with which a placeholder begins.
func (r *replacer) beginning(data []byte) int {
	longest := 0
	for _, each := range r.pairs {
		for n := min(len(each.old)-1, len(data)); n > longest; n-- {
			if strings.HasPrefix(each.old, string(data[len(data)-n:])) {
				longest = n
			}
		}
	}
	return longest
}

func (r *replacer) Close() error { return r.from.Close() }
