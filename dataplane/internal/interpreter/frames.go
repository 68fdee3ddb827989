// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// A frame is what the daemon and a driver tell each other over pipes of their own: a list of byte
// strings, the kind first. On the wire it is the number of strings, then each one's length and
// bytes; numbers have four bytes, the highest first. Any language writes this in a few lines.
//
//	to the driver     run <code> <option=value>…    ack    interrupt
//	from the driver   ready <version>    done    ack-wanted: sync, result/display <mime> <data>…
//	                  error <name> <value> <traceback>…    save <name> <type> <data>
type frame [][]byte

// Bounds of one frame. Drivers shorten what would be longer; whoever exceeds them is broken.
const (
	maxFields = 4096
	maxFrame  = 64 << 20
)

var errBadFrame = errors.New("the driver sent what is no frame")

func (f frame) kind() string { return string(f[0]) }

// field is the text at an index, or nothing.
func (f frame) field(index int) string {
	if index >= len(f) {
		return ""
	}
	return string(f[index])
}

func appendFrame(dst []byte, fields ...string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(fields)))
	for _, field := range fields {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(field)))
		dst = append(dst, field...)
	}
	return dst
}

func readFrame(r *bufio.Reader) (frame, error) {
	count, err := readNumber(r)
	if err != nil {
		return nil, err
	}
	if count == 0 || count > maxFields {
		return nil, errBadFrame
	}
	left := int64(maxFrame)
	f := make(frame, count)
	for i := range f {
		size, err := readNumber(r)
		if err != nil {
			return nil, err
		}
		if left -= int64(size); left < 0 {
			return nil, errBadFrame
		}
		// Nothing is reserved ahead: a length that lies costs no memory.
		var field bytes.Buffer
		if _, err := io.CopyN(&field, r, int64(size)); err != nil {
			return nil, err
		}
		f[i] = field.Bytes()
	}
	return f, nil
}

func readNumber(r *bufio.Reader) (uint32, error) {
	var number [4]byte
	_, err := io.ReadFull(r, number[:])
	return binary.BigEndian.Uint32(number[:]), err
}
