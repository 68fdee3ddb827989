// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package plainbody takes the compression off bodies that have to be looked into.
package plainbody

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// ErrUnknown is the error for encodings that nobody here can undo.
var ErrUnknown = errors.New("the body is encoded in a way that cannot be looked into")

const (
	mostLayers = 3
	zstdWindow = 8 << 20 // what browsers accept
)

// Open reads a body as it was before its Content-Encoding; several are undone from the last one on.
func Open(body io.ReadCloser, encodings []string) (io.ReadCloser, error) {
	var layers []string
	for _, each := range encodings {
		for word := range strings.SplitSeq(each, ",") {
			word = strings.ToLower(strings.TrimSpace(word))
			if word != "" && word != "identity" {
				layers = append(layers, word)
			}
		}
	}
	if len(layers) > mostLayers {
		return nil, ErrUnknown
	}
	opened := &layered{Reader: body, from: body}
	for i := len(layers) - 1; i >= 0; i-- {
		open, known := openers[layers[i]]
		if !known {
			return nil, ErrUnknown
		}
		opened.Reader = &late{from: opened.Reader, open: open}
	}
	return opened, nil
}

type layered struct {
	io.Reader
	from io.Closer
}

func (l *layered) Close() error {
	if late, ok := l.Reader.(*late); ok {
		late.release()
	}
	return l.from.Close()
}

// late opens a layer when it is read, so that the head of an answer does not wait for its body.
type late struct {
	from   io.Reader
	open   func(io.Reader) (io.Reader, error)
	opened io.Reader
	failed error
}

func (l *late) Read(p []byte) (int, error) {
	if l.opened == nil && l.failed == nil {
		l.opened, l.failed = l.open(l.from)
	}
	if l.failed != nil {
		return 0, l.failed
	}
	return l.opened.Read(p)
}

func (l *late) release() {
	if decoder, ok := l.opened.(*zstd.Decoder); ok {
		decoder.Close()
	}
	if inner, ok := l.from.(*late); ok {
		inner.release()
	}
}

var openers = map[string]func(io.Reader) (io.Reader, error){
	"gzip": openGzip, "x-gzip": openGzip, "deflate": openDeflate,
	"br":   func(from io.Reader) (io.Reader, error) { return brotli.NewReader(from), nil },
	"zstd": openZstd,
}

func openGzip(from io.Reader) (io.Reader, error) {
	return emptyOr(from, func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) })
}

func openZstd(from io.Reader) (io.Reader, error) {
	return zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
}

// openDeflate reads both of what servers mean by it: with the frame of zlib and without.
func openDeflate(from io.Reader) (io.Reader, error) {
	return emptyOr(from, func(r *bufio.Reader) (io.Reader, error) {
		head, err := r.Peek(2)
		if err == nil && head[0]&15 == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
			return zlib.NewReader(r)
		}
		return flate.NewReader(r), nil
	})
}

// emptyOr lets a body of no bytes be one, whatever it is said to be encoded in.
func emptyOr(from io.Reader, open func(*bufio.Reader) (io.Reader, error)) (io.Reader, error) {
	buffered := bufio.NewReader(from)
	if _, err := buffered.Peek(1); err != nil {
		return nil, err
	}
	return open(buffered)
}
