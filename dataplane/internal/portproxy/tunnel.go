// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// halfOpen is how long one direction may go on after the other has ended without a word of closing.
const halfOpen = 30 * time.Second

// tunnel serves a request for an upgrade: when the application agrees, both connections become one raw stream of
// bytes without limits of time or size; when it refuses, its answer is an ordinary one.
func (s *Service) tunnel(w http.ResponseWriter, r *http.Request, out *http.Request, to target) {
	upstream, err := s.dial(r.Context(), to.host)
	if err != nil {
		s.badGateway(w, r, to, err)
		return
	}
	defer closeBody(upstream)
	// Until the caller's connection is ours, its context tells that he left.
	stop := context.AfterFunc(r.Context(), func() { closeBody(upstream) })
	defer stop()
	reader := bufio.NewReaderSize(upstream, 16<<10)
	response, err := ask(upstream, reader, out)
	if err != nil {
		s.badGateway(w, r, to, err)
		return
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer closeBody(response.Body)
		s.relay(w, r, response, to)
		return
	}
	if !stop() {
		return
	}
	s.join(w, response, upstream, reader)
}

// ask sends the request and skips interim answers.
func ask(upstream io.Writer, reader *bufio.Reader, out *http.Request) (*http.Response, error) {
	if err := out.Write(upstream); err != nil {
		return nil, err
	}
	for {
		response, err := http.ReadResponse(reader, out)
		if err != nil {
			return nil, err
		}
		if response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}
	}
}

func (s *Service) join(w http.ResponseWriter, response *http.Response, upstream net.Conn, reader *bufio.Reader) {
	upgrade, connection := response.Header.Get("Upgrade"), response.Header.Get("Connection")
	dropHopByHop(response.Header)
	response.Header.Set("Upgrade", upgrade)
	response.Header.Set("Connection", connection)
	caller, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		log.Printf("event=proxy_no_hijack error=%q", err)
		panic(http.ErrAbortHandler)
	}
	defer closeBody(caller)
	// A server sets deadlines on its connections; a tunnel has none.
	if err := caller.SetDeadline(time.Time{}); err != nil {
		return
	}
	if err := writeHead(caller, response); err != nil {
		return
	}
	both(caller, buffered.Reader, upstream, reader)
}

func writeHead(caller net.Conn, response *http.Response) error {
	out := bufio.NewWriter(caller)
	_, err := io.WriteString(out, "HTTP/1.1 101 Switching Protocols\r\n")
	if err == nil {
		err = response.Header.Write(out)
	}
	if err == nil {
		_, err = io.WriteString(out, "\r\n")
	}
	if err == nil {
		err = out.Flush()
	}
	return err
}

// both copies in both directions until each has ended, or until one has failed.
func both(caller net.Conn, fromCaller *bufio.Reader, upstream net.Conn, fromUpstream *bufio.Reader) {
	ended := make(chan error, 2)
	go func() { ended <- oneWay(upstream, caller, fromCaller) }()
	go func() { ended <- oneWay(caller, upstream, fromUpstream) }()
	if err := <-ended; err == nil {
		select {
		case <-ended:
			return
		case <-time.After(halfOpen):
		}
	}
	closeBody(caller)
	closeBody(upstream)
	<-ended
}

// oneWay first passes on what was read ahead, then lets the kernel move the rest, and hands the end on.
func oneWay(to, from net.Conn, ahead *bufio.Reader) error {
	if n := ahead.Buffered(); n > 0 {
		if _, err := io.CopyN(to, ahead, int64(n)); err != nil {
			return err
		}
	}
	if _, err := io.Copy(plain(to), plain(from)); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return to.Close()
}

// plain finds the connection below wrappers, so that copying can use splice.
func plain(conn net.Conn) net.Conn {
	for {
		wrapped, ok := conn.(interface{ Unwrap() net.Conn })
		if !ok {
			return conn
		}
		conn = wrapped.Unwrap()
	}
}
