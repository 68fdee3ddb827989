// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"encoding/json"
	"net/http"
)

// arrayWriter streams a JSON array of entries, so that a listing of a million files needs no memory. Nothing is sent
// before the first 64 KiB are full: up to then an error is still a proper answer.
type arrayWriter struct {
	call     *call
	accounts *accounts
	buffer   *bufio.Writer
	count    int
}

func (c *call) beginArray() *arrayWriter {
	out := &arrayWriter{call: c, accounts: c.service.accounts.get()}
	out.buffer = bufio.NewWriterSize(out, 64<<10)
	return out
}

// Write implements io.Writer for the buffer.
func (a *arrayWriter) Write(text []byte) (int, error) {
	if !a.call.committed {
		a.call.committed = true
		a.call.writer.Header().Set("Content-Type", "application/json")
		a.call.writer.WriteHeader(http.StatusOK)
	}
	return a.call.writer.Write(text)
}

func (a *arrayWriter) add(entry any) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	separator := byte(',')
	if a.count == 0 {
		separator = '['
	}
	a.count++
	if err := a.buffer.WriteByte(separator); err != nil {
		return err
	}
	_, err = a.buffer.Write(text)
	return err
}

func (a *arrayWriter) end() error {
	closing := "]"
	if a.count == 0 {
		closing = "[]"
	}
	if _, err := a.buffer.WriteString(closing); err != nil {
		return err
	}
	return a.buffer.Flush()
}
