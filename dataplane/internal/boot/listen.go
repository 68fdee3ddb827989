// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
)

// Listen opens every address, "tcp://host:port" or "unix:///path", and says what they became:
// port 0 turns into a real one.
func Listen(addresses []string) ([]net.Listener, []string, error) {
	var listeners []net.Listener
	var actual []string
	for _, address := range addresses {
		listener, err := listenOne(address)
		if err != nil {
			closeAll(listeners)
			return nil, nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		listeners = append(listeners, listener)
		actual = append(actual, listener.Addr().Network()+"://"+listener.Addr().String())
	}
	return listeners, actual, nil
}

func listenOne(address string) (net.Listener, error) {
	network, where, found := strings.Cut(address, "://")
	if !found {
		return nil, errors.New("an address starts with tcp:// or unix://")
	}
	switch network {
	case "tcp":
		return net.Listen("tcp", where)
	case "unix":
		if err := os.Remove(where); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the old socket: %w", err)
		}
		return net.Listen("unix", where)
	}
	return nil, fmt.Errorf("the scheme %q is not tcp or unix", network)
}

func closeAll(listeners []net.Listener) {
	for _, listener := range listeners {
		// Nothing was accepted yet, so there is nothing to lose.
		_ = listener.Close()
	}
}
