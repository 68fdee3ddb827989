// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"testing"
)

func BenchmarkInjectedRequests(b *testing.B) {
	s := newStage(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
	s.bind(binding("b", "", bearer))
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host})
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		reader := bufio.NewReader(c)
		for pb.Next() {
			_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: "+host+"\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n")
			got, err := http.ReadResponse(reader, nil)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, got.Body)
		}
	})
}
