// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"errors"
	"log"
	"net"
)

// probeAddress is where official clients look whether code can run. They only connect.
const probeAddress = "127.0.0.1:44771"

// AnswerProbes lets official clients see that code can run. Where several daemons share a network,
// the first one answers for all; whatever else listens there already is left alone.
func AnswerProbes() {
	listener, err := net.Listen("tcp4", probeAddress)
	if err != nil {
		log.Printf("event=probe_address_taken error=%q", err)
		return
	}
	go accept(listener)
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
