// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"encoding/binary"
	"errors"
)

// Hello is what a TLS client says first, in clear.
type Hello struct {
	Name      string // as it was sent; "" when none was
	Encrypted bool   // an encrypted client hello is inside, so that Name may be a decoy
}

const (
	recordHandshake = 0x16
	clientHello     = 1
	extensionName   = 0
	extensionECH    = 0xfe0d
	oldestESNI      = 0xffce
	recordHead      = 5
	handshakeHead   = 4
	longestHello    = 64 << 10
)

var (
	errMore   = errors.New("more bytes are needed")
	errNoTLS  = errors.New("this is no TLS client hello")
	errNoRoom = errors.New("the client hello is too long")
)

// parseHello reads the client hello at the start of a stream; errMore asks for more of it.
func parseHello(data []byte) (*Hello, error) {
	message, err := handshake(data)
	if err != nil {
		return nil, err
	}
	r := reader{message}
	r.skip(2 + 32) // version, random
	r.vector(1)    // session
	r.vector(2)    // cipher suites
	r.vector(1)    // compression
	extensions := reader{r.vector(2)}
	if r.bad() {
		return nil, errNoTLS
	}
	return parseExtensions(extensions)
}

func parseExtensions(extensions reader) (*Hello, error) {
	hello, seen := &Hello{}, map[uint16]bool{}
	for len(extensions.rest) > 0 {
		kind := extensions.uint16()
		body := reader{extensions.vector(2)}
		if extensions.bad() || seen[kind] {
			return nil, errNoTLS
		}
		seen[kind] = true
		switch kind {
		case extensionName:
			list := reader{body.vector(2)}
			if list.skip(1); !list.bad() {
				hello.Name = string(list.vector(2))
			}
			if list.bad() || len(list.rest) > 0 {
				return nil, errNoTLS
			}
		case extensionECH, oldestESNI:
			hello.Encrypted = true
		}
	}
	return hello, nil
}

// handshake joins the records that carry the first handshake message.
func handshake(data []byte) ([]byte, error) {
	var message []byte
	for {
		if len(message) >= handshakeHead {
			length := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
			if message[0] != clientHello {
				return nil, errNoTLS
			}
			if length > longestHello {
				return nil, errNoRoom
			}
			if len(message) >= handshakeHead+length {
				return message[handshakeHead : handshakeHead+length], nil
			}
		}
		if len(data) < recordHead {
			return nil, errMore
		}
		length := int(binary.BigEndian.Uint16(data[3:]))
		if data[0] != recordHandshake || data[1] != 3 || length == 0 || length > 16<<10 {
			return nil, errNoTLS
		}
		if len(data) < recordHead+length {
			return nil, errMore
		}
		message = append(message, data[recordHead:recordHead+length]...)
		data = data[recordHead+length:]
	}
}

// reader takes fields off a message; once one is missing it stays bad.
type reader struct{ rest []byte }

func (r *reader) bad() bool { return r.rest == nil }

func (r *reader) skip(n int) {
	if len(r.rest) < n {
		r.rest = nil
		return
	}
	r.rest = r.rest[n:]
}

func (r *reader) uint16() uint16 {
	if len(r.rest) < 2 {
		r.rest = nil
		return 0
	}
	value := binary.BigEndian.Uint16(r.rest)
	r.rest = r.rest[2:]
	return value
}

// vector is a field behind its length in so many bytes.
func (r *reader) vector(size int) []byte {
	if len(r.rest) < size {
		r.rest = nil
		return nil
	}
	length := 0
	for _, b := range r.rest[:size] {
		length = length<<8 | int(b)
	}
	if len(r.rest) < size+length {
		r.rest = nil
		return nil
	}
	field := r.rest[size : size+length]
	r.rest = r.rest[size+length:]
	return field
}
