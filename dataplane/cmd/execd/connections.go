// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"errors"
	"net"
	"sync"
)

// connections knows every TCP connection that the daemon accepted and still has open.
type connections struct {
	mu   sync.Mutex
	open map[*known]struct{}
	// abrupt makes every close a reset, after which the kernel has nothing left of the connection.
	abrupt bool
}

// known is one of them.
type known struct {
	*net.TCPConn
	all *connections
}

// Close also forgets it.
func (k *known) Close() error {
	k.all.mu.Lock()
	delete(k.all.open, k)
	abrupt := k.all.abrupt
	k.all.mu.Unlock()
	if abrupt {
		return errors.Join(k.SetLinger(0), k.TCPConn.Close())
	}
	return k.TCPConn.Close()
}

// counted is a listener whose connections are known.
type counted struct {
	net.Listener
	all *connections
}

// Accept waits for the next connection.
func (c counted) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	stream, isTCP := accepted.(*net.TCPConn)
	if err != nil || !isTCP {
		return accepted, err
	}
	added := &known{stream, c.all}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.all.open == nil {
		c.all.open = map[*known]struct{}{}
	}
	c.all.open[added] = struct{}{}
	return added, nil
}

// reset ends all of them abruptly, and those that come until begin.
func (c *connections) reset() (err error) {
	c.mu.Lock()
	c.abrupt = true
	var ended []*known
	for connection := range c.open {
		ended = append(ended, connection)
	}
	c.mu.Unlock()
	for _, connection := range ended {
		err = errors.Join(err, connection.Close())
	}
	return err
}

// begin ends connections with ceremony again.
func (c *connections) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abrupt = false
}
