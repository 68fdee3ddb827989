// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// sockets are where the packet filter leads connections and questions. Their numbers stay the same
// over restarts if they can, so that rules in the kernel stay right.
type sockets struct {
	entry *net.TCPListener
	tcp   *net.TCPListener
	udp   *net.UDPConn
}

type numbers struct {
	Entry int `json:"entry"`
	DNS   int `json:"dns"`
}

func openSockets(file string) (*sockets, error) {
	var known numbers
	if content, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(content, &known); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	} else if !os.IsNotExist(err) {
		return nil, err
	}
	opened, err := known.open()
	if err != nil && known != (numbers{}) { // somebody else took one meanwhile
		opened, err = numbers{}.open()
	}
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(numbers{opened.entryPort(), opened.dnsPort()})
	if err != nil {
		return nil, err
	}
	return opened, os.WriteFile(file, content, 0o600)
}

func (n numbers) open() (*sockets, error) {
	entry, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: n.Entry})
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		tcp, udp, err := openPair(n.DNS)
		if err == nil {
			return &sockets{entry, tcp, udp}, nil
		}
		if n.DNS != 0 || attempt == 20 {
			return nil, errors.Join(err, entry.Close())
		}
	}
}

// openPair listens on one number for both protocols.
func openPair(port int) (*net.TCPListener, *net.UDPConn, error) {
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port})
	if err != nil {
		return nil, nil, err
	}
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{Port: tcp.Addr().(*net.TCPAddr).Port})
	if err != nil {
		return nil, nil, errors.Join(err, tcp.Close())
	}
	return tcp, udp, nil
}

func (s *sockets) entryPort() int { return s.entry.Addr().(*net.TCPAddr).Port }
func (s *sockets) dnsPort() int   { return s.tcp.Addr().(*net.TCPAddr).Port }

// hostAddresses are this host's own, looked up again every so often.
type hostAddresses struct {
	mu    sync.Mutex
	read  time.Time
	known map[netip.Addr]bool
}

const addressesLast = time.Second

func (h *hostAddresses) contains(address netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.read) > addressesLast {
		h.refresh()
	}
	return h.known[address.Unmap()]
}

// refresh keeps what was known when the kernel does not tell.
func (h *hostAddresses) refresh() {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return
	}
	h.read, h.known = time.Now(), map[netip.Addr]bool{}
	for _, each := range list {
		if prefix, err := netip.ParsePrefix(each.String()); err == nil {
			h.known[prefix.Addr().Unmap()] = true
		}
	}
}
