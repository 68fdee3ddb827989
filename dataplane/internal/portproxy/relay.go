// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"errors"
	"io"
	"log"
	"net/http"
)

// relay passes an answer on. When the application breaks off in the middle, so do we: the caller must not take a part
// for the whole.
func (s *Service) relay(w http.ResponseWriter, r *http.Request, response *http.Response, to target) {
	responseHeader(w.Header(), response, to)
	w.WriteHeader(response.StatusCode)
	control := http.NewResponseController(w)
	if response.ContentLength < 0 {
		// A stream may have nothing to say for long, but its head is news already.
		_ = control.Flush() // a failure shows at the next write
	}
	if err := s.copyBody(w, control, response.Body); err != nil {
		if r.Context().Err() == nil {
			log.Printf("event=proxy_broken_off port=%d error=%q", to.port, err)
		}
		panic(http.ErrAbortHandler)
	}
	for name, values := range response.Trailer {
		for _, value := range values {
			w.Header().Add(http.TrailerPrefix+name, value)
		}
	}
}

// copyBody delivers every piece as soon as it is there.
func (s *Service) copyBody(w io.Writer, control *http.ResponseController, body io.Reader) error {
	buffer := s.buffers.Get().(*[]byte) // the pool holds nothing else
	defer s.buffers.Put(buffer)
	for {
		n, err := body.Read(*buffer)
		if n > 0 {
			if _, err := w.Write((*buffer)[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
