// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"bytes"
	"log"
	"testing"
)

func TestOnlyOwnLinesAreLogged(t *testing.T) {
	var out bytes.Buffer
	logger := log.New(events{&out}, "", log.LstdFlags|log.Lmicroseconds|log.LUTC)
	logger.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "HTTP/1.1 200 secret\r\nevent=x", nil)
	logger.Print("secret event=x")
	logger.Print("event=kept")
	if bytes.Contains(out.Bytes(), []byte("secret")) || !bytes.HasSuffix(out.Bytes(), []byte(" event=kept\n")) {
		t.Errorf("%q", out.String())
	}
}
