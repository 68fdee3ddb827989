// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// maxBody bounds JSON bodies: a script of several MiB fits even when every byte is escaped.
const maxBody = 32 << 20

// ReadJSON decodes the body into v and writes the refusal itself when it cannot: false means that
// the answer is out. Unknown members are tolerated; a second value after the first is not.
func ReadJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	body, ok := readBody(w, r)
	if !ok {
		return false
	}
	if len(bytes.TrimSpace(body)) == 0 {
		WriteError(w, http.StatusBadRequest, CodeInvalidRequest, "the request needs a JSON body")
		return false
	}
	return decode(w, body, v)
}

// ReadOptionalJSON is ReadJSON for routes whose body may be absent: then v stays as it is.
func ReadOptionalJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	body, ok := readBody(w, r)
	if !ok {
		return false
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return true
	}
	return decode(w, body, v)
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		WriteError(w, http.StatusRequestEntityTooLarge, CodeTooLarge, "the JSON body is larger than 32 MiB")
		return nil, false
	}
	if err != nil {
		WriteError(w, http.StatusBadRequest, CodeInvalidRequest, "the request body could not be read: "+err.Error())
		return nil, false
	}
	return body, true
}

func decode(w http.ResponseWriter, body []byte, v any) bool {
	if err := json.Unmarshal(body, v); err != nil {
		WriteError(w, http.StatusBadRequest, CodeInvalidRequest, "the request body is not what this route expects: "+err.Error())
		return false
	}
	return true
}
