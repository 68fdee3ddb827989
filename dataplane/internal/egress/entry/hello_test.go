// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// helloOf is what Go's own client sends first.
func helloOf(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, config).Handshake()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	return append(head, body...)
}

func TestTheServerNameIsRead(t *testing.T) {
	data := helloOf(t, &tls.Config{ServerName: "a.example.test", NextProtos: []string{"h2"}})
	hello, err := parseHello(data)
	if err != nil || hello.Name != "a.example.test" || hello.Encrypted {
		t.Fatal(hello, err)
	}
	for end := range len(data) {
		if _, err := parseHello(data[:end]); !errors.Is(err, errMore) {
			t.Fatalf("after %d bytes: %v", end, err)
		}
	}
}

func TestAHelloOverSeveralRecordsIsRead(t *testing.T) {
	whole := helloOf(t, &tls.Config{ServerName: "a.example.test"})
	message := whole[5:]
	var split []byte
	for len(message) > 0 {
		size := min(7, len(message))
		split = append(split, 0x16, 3, 1, 0, byte(size))
		split = append(split, message[:size]...)
		message = message[size:]
	}
	hello, err := parseHello(split)
	if err != nil || hello.Name != "a.example.test" {
		t.Fatal(hello, err)
	}
}

func TestNoNameAndNonsense(t *testing.T) {
	hello, err := parseHello(helloOf(t, &tls.Config{InsecureSkipVerify: true}))
	if err != nil || hello.Name != "" {
		t.Fatal(hello, err)
	}
	for _, bad := range []string{"\x16\x03\x01\x00\x00", "\x16\x03\x01\x00\x04\x02\x00\x00\x00", "\x17\x03\x01\x00\x01a",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01a", "\x16\x03\x01\x00\x04\x01\xff\xff\xff"} {
		if hello, err := parseHello([]byte(bad)); err == nil || errors.Is(err, errMore) {
			t.Errorf("%q: %v %v", bad, hello, err)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if hello, err := parseHello(data); err == nil && hello == nil {
			t.Error("neither a hello nor an error")
		}
	})
}

func TestClassify(t *testing.T) {
	for head, want := range map[string]kind{
		"": undecided, "\x16": speaksTLS, "\x16\x03\x01": speaksTLS, "hi": undecided, "a b\n": speaksOther,
		"GET / HTTP/1.1\r\n": speaksHTTP, "GET / HT": undecided, "G": undecided, "PRI * HTTP/2.0\r\n": speaksHTTP,
		"SSH-2.0-x\r\n": speaksOther, "EHLO me\r\n": speaksOther, "\x00\x00\x00\x08": speaksOther, "get / HTTP/1.1\n": speaksHTTP,
		"\r\n\r\nGET / HTTP/1.1\r\n": speaksHTTP, "\r\n": undecided, " GET / HTTP/1.1\r\n": speaksHTTP, "*1\r\n$4\r\n": speaksOther,
		"GET\t/\tHTTP/1.1\r\n": speaksHTTP, "G.T\v/\vhttp/1.1\r\n": speaksHTTP, "GET / HTTP/1.1": speaksHTTP,
		strings.Repeat("M", 100) + " / HTTP/1.1\r\n": speaksHTTP,
	} {
		if got := classify([]byte(head)); got != want {
			t.Errorf("%q: %v", head, got)
		}
	}
}
