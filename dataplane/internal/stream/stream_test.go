// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package stream

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"casulo.dev/dataplane/internal/output"
)

// play sends pieces through a framing and returns what a client reads.
func play(t *testing.T, f framing, pieces []output.Piece) []map[string]any {
	t.Helper()
	recorder := httptest.NewRecorder()
	out := &buffer{to: recorder}
	for _, p := range pieces {
		f.piece(out, p)
	}
	f.finish(out)
	f.release()
	out.write()
	var events []map[string]any
	for _, frame := range strings.Split(recorder.Body.String(), "\n\n") {
		if frame == "" {
			continue
		}
		var e map[string]any
		if err := json.Unmarshal([]byte(frame), &e); err != nil {
			t.Fatalf("%q: %v", frame, err)
		}
		events = append(events, e)
	}
	if held := heldLines.Load(); held != 0 {
		t.Errorf("%d bytes stay counted as held", held)
	}
	return events
}

// cut makes pieces of one stream, each at most size bytes long.
func cut(text string, size int) []output.Piece {
	var pieces []output.Piece
	for at := 0; at < len(text); at += size {
		part := text[at:min(at+size, len(text))]
		pieces = append(pieces, output.Piece{Stream: output.Stdout, Offset: int64(at), Data: []byte(part)})
	}
	return pieces
}

// lines is what line framing has to make of a text: an independent and slow description.
func lines(text string) []string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	parts := strings.Split(text, "\n")
	if last := len(parts) - 1; parts[last] == "" {
		parts = parts[:last]
	}
	for i, part := range parts {
		if part == "" {
			parts[i] = "\n"
		}
		parts[i] = string([]rune(parts[i]))
	}
	return parts
}

func FuzzLineFraming(f *testing.F) {
	for _, seed := range []string{"a\nb", "a\r\nb\rc\n\n", "é\n\xff\xfe", "\r", "\r\n", "\n\r", "日本\u2028語", "no end"} {
		f.Add(seed, 1)
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 {
			return
		}
		var got []string
		for _, e := range play(t, &lineFraming{}, cut(text, size)) {
			got = append(got, e["text"].(string))
		}
		if want := lines(text); strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%q in %d: got %q, want %q", text, size, got, want)
		}
	})
}

func FuzzRawFraming(f *testing.F) {
	for _, seed := range []string{"a\nb", "é", "\xff\xfe", "日本", "\xe6\x97", "x\xf0\x9f\x98\x80y"} {
		f.Add(seed, 1)
		f.Add(seed, 2)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 {
			return
		}
		var got []byte
		for _, e := range play(t, &rawFraming{}, cut(text, size)) {
			if e["offset"].(float64) != float64(len(got)) {
				t.Errorf("%q in %d: offset %v after %d bytes", text, size, e["offset"], len(got))
			}
			if encoded, found := e["base64"]; found {
				data, err := base64.StdEncoding.DecodeString(encoded.(string))
				if err != nil {
					t.Fatal(err)
				}
				if utf8.ValidString(text) {
					t.Errorf("%q in %d: a character was split", text, size)
				}
				got = append(got, data...)
				continue
			}
			got = append(got, e["text"].(string)...)
		}
		if string(got) != text {
			t.Errorf("%q in %d became %q", text, size, got)
		}
	})
}

func TestStreamsDoNotMix(t *testing.T) {
	pieces := []output.Piece{
		{Stream: output.Stdout, Offset: 0, Data: []byte("a\xc3")},
		{Stream: output.Stderr, Offset: 2, Data: []byte("E\n")},
		{Stream: output.Stdout, Offset: 4, Data: []byte("\xa9\n")},
	}
	var got []string
	for _, f := range []framing{&lineFraming{}, &rawFraming{}} {
		for _, e := range play(t, f, pieces) {
			got = append(got, e["type"].(string)+"="+e["text"].(string))
		}
	}
	if strings.Join(got, " ") != "stderr=E stdout=aé stdout=a stderr=E\n stdout=é\n" {
		t.Errorf("%q", got)
	}
}

func TestALineBeyondTheBoundComesInParts(t *testing.T) {
	text := strings.Repeat("é", maxHeldLines/2+100<<10)
	var all strings.Builder
	events := play(t, &lineFraming{}, cut(text, 32<<10-1))
	for _, e := range events {
		all.WriteString(e["text"].(string))
	}
	if len(events) < 2 || all.String() != text {
		t.Errorf("%d events, %d bytes", len(events), all.Len())
	}
}

func FuzzQuoted(f *testing.F) {
	for _, seed := range []string{"", "plain", "\"\\\n\r\t\x00\x1f\x7f", "é\u2028\u0085😀", "\xff\xc3(", "</script>"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted := appendQuoted(nil, text)
		if bytes.ContainsFunc(quoted, func(c rune) bool { return c < ' ' || c > 0x7e }) {
			t.Errorf("%q is not plain ASCII", quoted)
		}
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != strings.ToValidUTF8(text, "\ufffd") && back != string([]rune(text)) {
			t.Errorf("%q became %q: %v", text, back, err)
		}
	})
}

func TestFailureEvent(t *testing.T) {
	event := appendFailure(nil, Failure{Name: "N", Value: "1", Traceback: []string{"a", "b"}, Reason: "r", Signal: "S"})
	var got struct {
		Type   string
		Error  struct{ Ename, Evalue string }
		Reason string
	}
	if err := json.Unmarshal(event, &got); err != nil || got.Error.Ename != "N" || got.Reason != "r" {
		t.Errorf("%s: %v", event, err)
	}
}

func BenchmarkLines(b *testing.B) {
	text := strings.Repeat(strings.Repeat("A", 76)+"\n", 400)
	out := &buffer{to: discard{httptest.NewRecorder()}}
	f := &lineFraming{}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		f.piece(out, output.Piece{Stream: output.Stdout, Data: []byte(text)})
	}
}

func BenchmarkShortLines(b *testing.B) {
	text := []byte(strings.Repeat("y\n", 16<<10))
	out := &buffer{to: discard{httptest.NewRecorder()}}
	f := &lineFraming{}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		f.piece(out, output.Piece{Stream: output.Stdout, Data: text})
	}
}

type discard struct{ *httptest.ResponseRecorder }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
