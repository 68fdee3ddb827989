// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
)

// exchange is the sequence of requests on one plain HTTP connection. Each is judged by itself.
type exchange struct {
	*connection
	fromClient   *bufio.Reader
	fromUpstream *bufio.Reader
	idle         atomic.Bool // no request is under way
	watched      chan struct{}
}

func (c *connection) runHTTP() {
	x := &exchange{connection: c, fromClient: bufio.NewReaderSize(io.MultiReader(bytes.NewReader(c.head), c.client), 16<<10)}
	for x.one() {
	}
}

// one passes a request and its answer on, and tells whether another may follow.
func (x *exchange) one() bool {
	m, err := readMessage(x.fromClient)
	if err != nil {
		if !errors.Is(err, io.EOF) && !x.hasEnded() {
			x.reject(nil, 400, policy.Decision{Rule: -1, By: "HTTP", Reason: err.Error()})
		}
		return false
	}
	r, err := parseRequest(m)
	if err != nil {
		return x.unreadable(m, err)
	}
	x.idle.Store(false)
	decided := x.judgeRequest(r)
	if !decided.Allow {
		x.reject(r, 403, decided)
		return false
	}
	if x.isBound(r.name, false) {
		x.handOver(m)
		return false
	}
	if x.upstream == nil {
		if !x.connect("http", decided) {
			return false
		}
		x.fromUpstream = bufio.NewReaderSize(x.upstream, 16<<10)
		x.watch()
	}
	status, again := x.transfer(r)
	record := x.request(r, decided)
	record.Reason = fmt.Sprintf("answered %d", status)
	x.entry.audit.Write(record)
	return again
}

func (x *exchange) hasEnded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ended
}

// unreadable is for requests that cannot be judged; only a rule on the address lets them pass.
func (x *exchange) unreadable(m *message, err error) bool {
	x.setName("")
	decided := x.judge(x.query)
	unseen := !byAddress(x.box.Policy(), decided) && x.box.Policy().DeniesNames() // it could name a denied one
	if decided.Allow && !unseen && x.upstream == nil && x.connect("tcp", decided) {
		buffered, _ := x.fromClient.Peek(x.fromClient.Buffered())
		x.head = append(slices.Clone(m.raw), buffered...)
		if rest := len(x.connection.head); rest > 0 {
			x.pass()
		}
		return false
	}
	x.reject(nil, 400, policy.Decision{Rule: -1, By: "HTTP", Reason: err.Error()})
	return false
}

func (x *exchange) judgeRequest(r *request) policy.Decision {
	p := x.box.Policy()
	x.mu.Lock()
	x.query.Name, x.query.Request = r.name, &policy.Request{Method: r.method, Path: r.path}
	query := x.query
	x.mu.Unlock()
	if p.LooksAtPaths(query) && !isNormal(r.path) {
		return policy.Decision{Rule: -1, By: "HTTP", Reason: "the path is not in its normal form, so rules on paths cannot be applied"}
	}
	decided := x.judge(query)
	if !decided.Allow && r.name == "" && decided.Rule < 0 && p.Default == policy.Deny {
		decided.Reason = "the request names no host, and no rule allows the address"
	}
	return decided
}

func (x *exchange) request(r *request, decided policy.Decision) audit.Record {
	record := x.record("http").Judged(decided)
	if r != nil {
		record.Method, record.Path = r.method, r.path
		if path, _, hasQuery := strings.Cut(r.path, "?"); hasQuery {
			record.Path = path // a query may hold secrets
		}
	}
	return record
}

// reject tells the client why, if it can still be told, and ends the connection.
func (x *exchange) reject(r *request, status int, decided policy.Decision) {
	x.entry.audit.Write(x.request(r, decided))
	text := fmt.Sprintf("casulo-egress: denied by %s: %s\n", decided.By, decided.Reason)
	word := map[int]string{400: "Bad Request", 403: "Forbidden"}[status]
	_, _ = fmt.Fprintf(x.client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"+
		"X-Casulo-Egress: denied\r\nConnection: close\r\n\r\n%s", status, word, len(text), text)
	_ = x.client.CloseWrite()
}

// watch ends the connection when the server closes it, or speaks, while no request is under way.
func (x *exchange) watch() {
	watched := make(chan struct{})
	x.watched = watched
	go func() {
		defer close(watched)
		if _, err := x.fromUpstream.Peek(1); (err != nil || x.idle.Load()) && x.idle.Load() {
			_ = x.client.CloseRead()
			_ = x.client.CloseWrite()
		}
	}()
}

func (x *exchange) transfer(r *request) (status int, again bool) {
	if _, err := x.upstream.Write(r.out); err != nil {
		x.End()
		return 0, false
	}
	uploaded := make(chan error, 1)
	go func() {
		n, err := copyBody(x.upstream, x.fromClient, r.length)
		x.mu.Lock()
		x.up += n + int64(len(r.out))
		x.mu.Unlock()
		uploaded <- err
	}()
	<-x.watched
	status, again, err := x.answer(r)
	if err != nil {
		x.End()
		<-uploaded
		return status, false
	}
	if !again {
		_ = x.client.CloseWrite()
		_ = x.client.CloseRead()
	}
	if <-uploaded != nil || !again {
		return status, false
	}
	x.idle.Store(true)
	x.watch()
	return status, true
}

// answer passes responses on up to the final one.
func (x *exchange) answer(r *request) (status int, again bool, err error) {
	for {
		m, err := readMessage(x.fromUpstream)
		if err != nil {
			return 0, false, err
		}
		if status = statusOf(m.start); status == 0 {
			return 0, false, fmt.Errorf("%.40q is no response", m.start)
		}
		if _, err := x.client.Write(m.raw); err != nil {
			return status, false, err
		}
		if status == 101 {
			if !r.upgrade {
				return status, false, errors.New("an upgrade that nobody asked for")
			}
			return status, false, x.tunnel()
		}
		if status >= 200 {
			again, err := x.answerBody(r, m, status)
			return status, again, err
		}
	}
}

func (x *exchange) answerBody(r *request, m *message, status int) (again bool, err error) {
	length := int64(0)
	if r.method != "HEAD" && status != 204 && status != 304 {
		if length, err = m.body(untilEnd); err != nil {
			return false, err
		}
	}
	n, err := copyBody(x.client, x.fromUpstream, length)
	x.mu.Lock()
	x.down += n + int64(len(m.raw))
	x.mu.Unlock()
	return length != untilEnd, err
}

// tunnel passes what follows an upgrade both ways.
func (x *exchange) tunnel() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, _ := io.Copy(x.upstream, x.fromClient)
		x.mu.Lock()
		x.up += n
		x.mu.Unlock()
		_ = x.upstream.CloseWrite()
	}()
	n, err := io.Copy(x.client, x.fromUpstream)
	x.mu.Lock()
	x.down += n
	x.mu.Unlock()
	_ = x.client.CloseWrite()
	if err != nil {
		x.End()
	}
	<-done
	return err
}
