// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"strings"
	"testing"
	"testing/iotest"
)

type readPart struct{ name, content string }

func readForm(source io.Reader, boundary string) (parts []readPart, err error) {
	m, err := newMultipart(source, boundary)
	if err != nil {
		return nil, err
	}
	for {
		head, err := m.next()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return parts, err
		}
		var content strings.Builder
		err = m.data(func(piece []byte) error {
			content.Write(piece)
			return nil
		})
		if err != nil {
			return parts, err
		}
		parts = append(parts, readPart{head.name, content.String()})
	}
}

func TestMultipartParts(t *testing.T) {
	body := "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\r\n{}\r\n" +
		"--b  \r\ncontent-disposition: form-data; filename=\"a;name=x\\\"y\"; name=file\r\nX: y\r\n\r\n\r\n--bogus\r\n--\r\n" +
		"--b\r\n\r\nno name\r\n--b--\r\nepilogue"
	for _, source := range []io.Reader{strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body))} {
		parts, err := readForm(source, "b")
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("%q", parts), `[{"metadata" "{}"} {"file" "\r\n--bogus\r\n--"} {"" "no name"}]`)
	}
}

func TestMultipartCutAnywhereIsNeverComplete(t *testing.T) {
	body, kind := form(put("/x", "content"), put("/y", ""))
	boundary := kind[strings.Index(kind, "boundary=")+9:]
	whole := bytes.TrimRight(body, "\r\n")
	for cut := range len(whole) {
		if _, err := readForm(bytes.NewReader(whole[:cut]), boundary); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	if _, err := readForm(bytes.NewReader(whole), boundary); err != nil {
		t.Fatal(err)
	}
}

func TestMultipartDelimiterAcrossBufferEdges(t *testing.T) {
	for _, boundary := range []string{"b", strings.Repeat("long", 17)} {
		for shift := range 90 {
			content := bytes.Repeat([]byte("\r\n--"+boundary[:1]), (multipartBuffer-shift)/5)
			var body bytes.Buffer
			w := multipart.NewWriter(&body)
			if err := w.SetBoundary(boundary + "x"); err != nil {
				t.Fatal(err)
			}
			part, err := w.CreateFormField("file")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := part.Write(content); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			parts, err := readForm(&body, boundary+"x")
			if err != nil || len(parts) != 1 || parts[0].content != string(content) {
				t.Fatalf("boundary %q, shift %d: %v, %d parts", boundary, shift, err, len(parts))
			}
		}
	}
}

// FuzzMultipart compares with the standard library on what that one accepts.
func FuzzMultipart(f *testing.F) {
	body, _ := form(put("/x", "content"))
	f.Add(body, "b")
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--"), "b")
	f.Fuzz(func(t *testing.T, content []byte, boundary string) {
		var encoded bytes.Buffer
		w := multipart.NewWriter(&encoded)
		if w.SetBoundary(boundary) != nil || bytes.Contains(content, []byte("\r\n--"+boundary)) || bytes.HasPrefix(content, []byte("--"+boundary)) {
			return
		}
		part, err := w.CreateFormFile("file", string(content[:min(9, len(content))]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		source := iotest.DataErrReader(&encoded)
		if rand.IntN(2) == 0 {
			source = iotest.HalfReader(source)
		}
		parts, err := readForm(source, boundary)
		if err != nil || len(parts) != 1 || parts[0] != (readPart{"file", string(content)}) {
			t.Fatalf("%v: %q", err, parts)
		}
		_, _ = readForm(bytes.NewReader(content), boundary) // whatever comes in: no panic, no endless loop
	})
}

func BenchmarkMultipart(b *testing.B) {
	body, kind := form(file{map[string]any{"path": "/x"}, bytes.Repeat([]byte("some text\r\n"), 1<<20)})
	boundary := kind[strings.Index(kind, "boundary=")+9:]
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		m, err := newMultipart(bytes.NewReader(body), boundary)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = m.next()
		}
	}
}
