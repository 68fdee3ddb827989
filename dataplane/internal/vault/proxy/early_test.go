// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rude answers as soon as it has read a head, and closes while the client still sends.
func rude(t *testing.T, certificate tls.Certificate) net.Listener {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				request, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 413 "+request.Header.Get("Authorization")+"\r\nX-Echo: "+request.Header.Get("Authorization")+
					"\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbig\n")
				time.Sleep(50 * time.Millisecond)
			}()
		}
	}()
	return listener
}

func TestAnEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	s := recorder(t)
	listener := rude(t, s.outside.sign(t, host))
	s.serve(listener)
	s.bind(binding("b", "", bearer))
	for range 5 {
		c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.WriteString(c, "POST /up HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 67108864\r\n\r\n")
			_, _ = io.Copy(c, &zeros{huge}) // which breaks off at some point
		}()
		got, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(got.Body)
		c.Close()
		if got.StatusCode != 413 || string(body) != "big\n" || strings.Contains(got.Status+got.Header.Get("X-Echo"), secret) {
			t.Error(got.Status, got.Header, string(body))
		}
	}
}
