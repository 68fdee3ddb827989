// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"errors"
	"log"
	"net"
)

// ProbeAddress is where official clients look whether code can run. They only connect.
const ProbeAddress = "127.0.0.1:44771"

// AnswerProbes lets official clients see that code can run. Where several daemons share a network,
// the first one answers for all and has the listener; whatever listens there already is left alone.
func AnswerProbes() net.Listener {
	listener, err := net.Listen("tcp4", ProbeAddress)
	if err != nil {
		log.Printf("event=probe_address_taken error=%q", err)
		return nil
	}
	go accept(listener)
	return listener
}

func accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Printf("event=probe_not_accepted error=%q", err)
			continue
		}
		if err := connection.Close(); err != nil {
			log.Printf("event=probe_not_closed error=%q", err)
		}
	}
}
