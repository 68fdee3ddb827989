// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attempts2 are heads of one stream, as no ordinary client sends them. An empty value of a
// pseudo-header leaves it out.
var attempts2 = []struct {
	name    string
	fields  string // name=value, separated by spaces
	trailer string
	ends    fate
	status  int // when refused; 0 is a stream or connection that is broken off
}{
	{"another authority", ":method=GET :scheme=https :path=/v1/a :authority=evil.test", "", refused, 421},
	{"an authority below", ":method=GET :scheme=https :path=/v1/a :authority=x.HOST", "", refused, 421},
	{"no authority", ":method=GET :scheme=https :path=/v1/a", "", refused, 403},
	{"another host beside the authority", ":method=GET :scheme=https :path=/v1/a :authority=HOST host=evil.test", "", replaced, 0},
	{"another host without authority", ":method=GET :scheme=https :path=/v1/a host=evil2.test", "", refused, 421},
	{"two authorities", ":method=GET :scheme=https :path=/v1/a :authority=HOST :authority=evil.test", "", refused, 0},
	{"user in the authority", ":method=GET :scheme=https :path=/v1/a :authority=HOST@evil.test", "", refused, 0},
	{"another port", ":method=GET :scheme=https :path=/v1/a :authority=HOST:1", "", refused, 403},
	{"CONNECT", ":method=CONNECT :authority=HOST:443", "", refused, 403},
	{"extended CONNECT", ":method=CONNECT :protocol=websocket :scheme=https :path=/v1/a :authority=HOST", "", refused, 0},
	{"dots", ":method=GET :scheme=https :path=/v1/%2e%2e/a :authority=HOST", "", refused, 403},
	{"absolute path", ":method=GET :scheme=https :path=https://evil.test/v1/a :authority=HOST", "", refused, 403},
	{"no path", ":method=GET :scheme=https :authority=HOST", "", refused, 0},
	{"two paths", ":method=GET :scheme=https :path=/v1/a :path=/admin :authority=HOST", "", refused, 0},
	{"two methods", ":method=GET :method=DELETE :scheme=https :path=/v1/a :authority=HOST", "", refused, 0},
	{"headers of one connection", ":method=GET :scheme=https :path=/v1/a :authority=HOST connection=authorization", "", refused, 0},
	{"chunks", ":method=POST :scheme=https :path=/v1/a :authority=HOST transfer-encoding=chunked", "", refused, 0},
	{"a name in upper case", ":method=GET :scheme=https :path=/v1/a :authority=HOST Authorization=mine", "", refused, 0},
	{"its own header", ":method=GET :scheme=https :path=/v1/a :authority=HOST authorization=mine", "", replaced, 0},
	{"its own header in the trailer", ":method=POST :scheme=https :path=/v1/a :authority=HOST", "authorization=mine", replaced, 0},
	{"another path", ":method=GET :scheme=https :path=/v2/a :authority=HOST", "", bare, 0},
	{"the other scheme", ":method=GET :scheme=http :path=/v1/a :authority=HOST", "", replaced, 0},
}

func fields(text string) []byte {
	var block bytes.Buffer
	to := hpack.NewEncoder(&block)
	for field := range strings.FieldsSeq(strings.ReplaceAll(text, "HOST", host)) {
		at := strings.Index(field[1:], "=") + 1
		_ = to.WriteField(hpack.HeaderField{Name: field[:at], Value: field[at+1:]})
	}
	return block.Bytes()
}

// stream sends one head on a connection of its own, and returns the status and the body of the answer;
// status 0 is none.
func (s *stage) stream(head, trailer string) (status, body string) {
	c, err := tls.Dial("tcp", s.entry.Addr().String(), &tls.Config{RootCAs: s.inside.pool(), ServerName: host, NextProtos: []string{"h2"}})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, h2.ClientPreface)
	framer := h2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(h2.HeadersFrameParam{StreamID: 1, BlockFragment: fields(head), EndHeaders: true, EndStream: trailer == ""})
	if trailer != "" {
		_ = framer.WriteData(1, false, []byte("x"))
		_ = framer.WriteHeaders(h2.HeadersFrameParam{StreamID: 1, BlockFragment: fields(trailer), EndHeaders: true, EndStream: true})
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return status, body
		}
		switch f := frame.(type) {
		case *h2.MetaHeadersFrame:
			status = f.PseudoValue("status")
			body += fmt.Sprint(f.RegularFields())
		case *h2.DataFrame:
			body += string(f.Data())
		case *h2.RSTStreamFrame, *h2.GoAwayFrame:
			if f.Header().StreamID == 1 || status == "" {
				return status, body
			}
		}
		if frame.Header().StreamID == 1 && frame.Header().Flags.Has(h2.FlagDataEndStream) {
			return status, body
		}
	}
}

func TestAttemptsOverHTTP2(t *testing.T) {
	s := recorder(t)
	bindAttempts(s)
	for _, each := range attempts2 {
		t.Run(each.name, func(t *testing.T) {
			before := len(s.logged())
			status, body := s.stream(each.fields, each.trailer)
			noted := s.logged()[before:]
			want := each.status
			if each.ends != refused {
				want = 200
			}
			if want != 0 && status != fmt.Sprint(want) || want == 0 && status != "" && status[0] != '4' {
				t.Errorf("%q %s", status, body)
			}
			if status == "" || status[0] == '4' && noted == "" { // it was no request, and is refused before anybody looks at it
				if len(s.seen) != 0 || want != 0 {
					t.Error("it reached the server", status, body)
				}
				return
			}
			got := &http.Response{Status: status, StatusCode: want}
			if each.ends == refused && want == 0 {
				got.StatusCode = 400
			}
			s.checkFate(t, attempt{each.name, "", each.ends, want}, got, body, noted)
		})
	}
}
