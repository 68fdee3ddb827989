// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// hosts is the host's side of a line: each connection that it makes is accepted in turn.
func hosts() (*callable, func() net.Conn) {
	calls := make(chan io.ReadWriteCloser)
	line := newCallable(func() (io.ReadWriteCloser, error) {
		made, open := <-calls
		if !open {
			return nil, errors.New("closed")
		}
		return made, nil
	})
	return line, func() net.Conn {
		outside, inside := net.Pipe()
		calls <- inside
		return outside
	}
}

func TestALineGoesOnOverTheNextConnection(t *testing.T) {
	line, call := hosts()
	first := call()
	go first.Write([]byte("{\"do\":\"one\"}\n"))
	orders := newLink(line)
	if order, err := orders.receive(); err != nil || order.Do != "one" {
		t.Fatal(order, err)
	}
	first.Close()
	received := make(chan *order)
	go func() {
		order, _ := orders.receive()
		received <- order
	}()
	second := call()
	go second.Write([]byte("{\"do\":\"two\"}\n"))
	if order := <-received; order == nil || order.Do != "two" {
		t.Fatal(order)
	}
}

func TestWhatIsSaidWaitsForAConnection(t *testing.T) {
	line, call := hosts()
	sent := make(chan error)
	go func() { sent <- newLink(line).send(reply{Event: "waiting"}) }()
	host := call()
	got := make([]byte, 8)
	if _, err := io.ReadFull(host, got); err != nil || string(got) != `{"event"` {
		t.Fatal(string(got), err)
	}
	go io.Copy(io.Discard, host)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestTheNewestConnectionCounts(t *testing.T) {
	line, call := hosts()
	old := call()
	fresh := call()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := old.Read(make([]byte, 1)); err != nil {
			break // hung up on
		}
		if time.Now().After(deadline) {
			t.Fatal("the old connection is still open")
		}
	}
	go newLink(line).send(reply{Event: "waiting"})
	if _, err := fresh.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}
