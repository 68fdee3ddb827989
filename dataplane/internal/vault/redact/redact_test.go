// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"
)

var secrets = []string{
	"sk-Live_0123456789/abc+DEF==", "päss wörd&\"<\\>%41'\t#", "dXNlcjpwYXNz", "x\\u0041y%41z&amp;", "1234", "ab", "🔑key🔑",
	"-----BEGIN KEY-----\nMIIB\n-----END KEY-----\n", "aaaa", "aaab", "%%\\\\&&++",
}

// dressed are the encodings in which a server may send back what it got.
func dressed(secret string) map[string]string {
	quoted, _ := json.Marshal(secret)
	twice, _ := json.Marshal(string(quoted))
	found := map[string]string{
		"raw": secret, "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "json": string(quoted[1 : len(quoted)-1]),
		"json twice": strings.Trim(string(twice), `\"`), "html": html.EscapeString(secret),
		"html twice": html.EscapeString(html.EscapeString(secret)), "python": pythonEscape(secret), "units": units(secret),
		"percent all": percentAll(secret), "percent twice": url.QueryEscape(percentAll(secret)), "entities": entitiesOf(secret, "&#%d;"),
		"hex entities": entitiesOf(secret, "&#x%04X;"), "braces": entitiesOf(secret, "\\u{%x}"),
	}
	if len(secret) >= shortest {
		found["hex"], found["HEX"] = hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret)))
		for offset := range 3 {
			text := strings.Repeat("u", offset) + secret
			found[fmt.Sprint("base64 ", offset)] = base64.StdEncoding.EncodeToString([]byte(text + ":after"))
			found[fmt.Sprint("base64url ", offset)] = base64.RawURLEncoding.EncodeToString([]byte(text))
			found[fmt.Sprint("base64 escaped ", offset)] = url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(text)))
			found[fmt.Sprint("mime ", offset)] = wrapped(base64.StdEncoding.EncodeToString([]byte(text)))
		}
	}
	return found
}

func percentAll(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, "%%%02x", b)
	}
	return out.String()
}

func entitiesOf(text, format string) string {
	var out strings.Builder
	for _, char := range text {
		fmt.Fprintf(&out, format, char)
	}
	return out.String()
}

func units(text string) string {
	var out strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		fmt.Fprintf(&out, "\\u%04X", unit)
	}
	return out.String()
}

func pythonEscape(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, "\\x%02x", b)
	}
	return out.String()
}

func wrapped(text string) string {
	var lines []string
	for len(text) > 5 {
		lines, text = append(lines, text[:5]), text[5:]
	}
	return strings.Join(append(lines, text), "\r\n")
}

func TestEveryDressIsTakenOff(t *testing.T) {
	for _, secret := range secrets {
		m := Compile([]string{secret})
		for name, worn := range dressed(secret) {
			for _, frame := range []string{"%s", "<a>%s</a>", `{"k":"%s"}`, "x=%s&y=1", "\n%s\n"} {
				text := fmt.Sprintf(frame, worn)
				got := m.Text(text)
				if !strings.Contains(got, Word) || bytes.Contains([]byte(got), []byte(worn)) {
					t.Errorf("%q as %s: %q became %q", secret, name, text, got)
				}
				before, after, _ := strings.Cut(frame, "%s")
				if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
					t.Errorf("%q as %s: what surrounds it became %q", secret, name, got)
				}
			}
		}
	}
}

func TestBase64LeavesNothingOfTheSecret(t *testing.T) {
	m := Compile([]string{secrets[0]})
	for before := range 7 {
		for after := range 7 {
			text := strings.Repeat("<", before) + secrets[0] + strings.Repeat(">", after)
			got := m.Text(base64.StdEncoding.EncodeToString([]byte(text)))
			kept := strings.Split(strings.TrimRight(got, "="), Word)
			if len(kept) != 2 || len(kept[0]) > (8*before)/6 || len(kept[1]) > (8*after+5)/6 {
				t.Errorf("%d %d: %q", before, after, got)
			}
		}
	}
}

func TestUTF16(t *testing.T) {
	m := Compile([]string{secrets[0]})
	var little, big []byte
	for _, unit := range utf16.Encode([]rune("<" + secrets[0] + ">")) {
		little, big = append(little, byte(unit), byte(unit>>8)), append(big, byte(unit>>8), byte(unit))
	}
	for _, text := range []string{string(little), string(big)} {
		got := strings.ReplaceAll(m.Text(text), "\x00", "")
		if got != "<"+Word+">" {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestOverlappingSecretsLeaveNoRest(t *testing.T) {
	m := Compile([]string{"abcdef", "defghi", "hi"})
	if got := m.Text("<abcdefghi>"); got != "<"+Word+">" {
		t.Error(got)
	}
}

func TestWhatIsNoSecretStays(t *testing.T) {
	m := Compile(secrets[:4])
	for _, text := range []string{"", "plain", "50% of \\ & more; &nosuch; %zz \\q \\u12 &#x; &#999999999;", "c2st", "sk-Live_0123456789/abc+DEF=",
		"\x00\x01\xff\xfe", `{"a":"\u00e4\n\"b\""}`} {
		if got := m.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestNamesOfHeaders(t *testing.T) {
	m := Compile([]string{"Sk-Live-0123"})
	for name, want := range map[string]bool{"X-Sk-Live-0123": true, "x-" + hex.EncodeToString([]byte("Sk-Live-0123")): true, "X-Other": false} {
		if m.InName(name) != want {
			t.Error(name)
		}
	}
}

// readAll reads a body through the matcher as it comes.
func readAll(m *Matcher, from io.Reader, lines bool) string {
	got, err := io.ReadAll(Reader(io.NopCloser(from), lines, func() *Matcher { return m }))
	if err != nil {
		panic(err)
	}
	return string(got)
}

// pieces gives text away in pieces of random size.
type pieces struct {
	text   string
	random *rand.Rand
}

func (p *pieces) Read(into []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(into[:min(len(into), 1+p.random.IntN(12))], p.text)
	p.text = p.text[n:]
	return n, nil
}

func TestBordersOfChunksHideNothing(t *testing.T) {
	m := Compile(secrets)
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var text strings.Builder
		for range 1 + random.IntN(6) {
			secret := secrets[random.IntN(len(secrets))]
			for _, worn := range dressed(secret) { // any of them: the order of maps is random
				text.WriteString(worn[:len(worn)-random.IntN(2)*random.IntN(len(worn))])
				break
			}
			text.WriteString([]string{"", " ", "\n", "x", "%", "\\", "&", "=="}[random.IntN(8)])
		}
		want := m.Text(text.String())
		if got := readAll(m, &pieces{text.String(), random}, false); got != want {
			t.Fatalf("%q:\n got %q\nwant %q", text.String(), got, want)
		}
		if got := readAll(m, iotest.OneByteReader(strings.NewReader(text.String())), false); got != want {
			t.Fatalf("%q byte by byte:\n got %q\nwant %q", text.String(), got, want)
		}
	}
}

func TestCompleteLinesAreNotHeldBack(t *testing.T) {
	m := Compile([]string{secrets[0]})
	begun := base64.StdEncoding.EncodeToString([]byte(secrets[0]))[:12]
	from, to := io.Pipe()
	body := Reader(from, true, func() *Matcher { return m })
	go func() { _, _ = io.WriteString(to, "data: "+begun+"\n") }()
	got := make([]byte, 100)
	n, err := io.ReadAtLeast(body, got, len("data: ")+13)
	if err != nil || string(got[:n]) != "data: "+begun+"\n" {
		t.Errorf("%q %v", got[:n], err)
	}
}

func TestDelaysTellNothing(t *testing.T) {
	m := Compile([]string{secrets[0]})
	for _, lines := range []bool{false, true} {
		delays := map[int]bool{}
		for _, guess := range []string{"s", "sk-Live_", "x", "xk-Live_", "c2stTGl2", "%73", "%74", "736b"} {
			text := strings.Repeat(".", 5000) + "\n" + guess
			from, to := io.Pipe()
			go func() { _, _ = io.WriteString(to, text); _, _ = io.WriteString(to, "\n") }()
			body := Reader(from, lines, func() *Matcher { return m })
			got := make([]byte, 6000)
			n, err := body.Read(got)
			if err != nil {
				t.Fatal(err)
			}
			delays[len(text)-n-len(guess)*map[bool]int{true: 1}[lines]] = true
			_ = from.Close()
		}
		if len(delays) != 1 {
			t.Errorf("lines %v: what is held back depends on the text: %v", lines, delays)
		}
	}
}

func TestABrokenBodyShowsNothingOfItsEnd(t *testing.T) {
	m := Compile([]string{secrets[0]})
	broken := io.MultiReader(strings.NewReader("begin "+secrets[0][:9]), iotest.ErrReader(io.ErrUnexpectedEOF))
	got, err := io.ReadAll(Reader(io.NopCloser(broken), false, func() *Matcher { return m }))
	if string(got) != "" || err == nil {
		t.Errorf("%q %v", got, err)
	}
}

// naive replaces the plain secret only, which for texts without escapes is all there is to do.
func naive(text, secret string) string { return strings.ReplaceAll(text, secret, Word) }

func FuzzAgainstNaive(f *testing.F) {
	f.Add("left", "s3cr3t-value", "right", uint8(3))
	f.Add("%", "a%41", "\\", uint8(1))
	f.Add("s3cr3t-", "s3cr3t-value", "s3cr3t-value", uint8(7))
	f.Add("&am", "p;amp;", "p;", uint8(2))
	f.Add("\\\\", "\\u005c", "\\", uint8(5))
	f.Fuzz(func(t *testing.T, before, secret, after string, size uint8) {
		if len(secret) < 5 || len(secret) > 200 || len(before)+len(after) > 400 {
			return
		}
		m := Compile([]string{secret})
		text := before + secret + after
		got := readAll(m, &sized{text, int(size)%40 + 1}, false)
		if got != m.Text(text) {
			t.Fatalf("in pieces of %d: %q, whole: %q", size, got, m.Text(text))
		}
		if !strings.Contains(Word, secret) && strings.Contains(got, secret) && !strings.Contains(before+Word+after, secret) {
			t.Fatalf("%q is left in %q", secret, got)
		}
		isPlain := !strings.ContainsAny(before+after+secret, "%\\&+\x00") && !strings.ContainsAny(secret, " ")
		if isPlain && strings.Count(text, secret) == 1 && !strings.Contains(naive(text, secret), secret) && got != naive(text, secret) &&
			got == text {
			t.Fatalf("got %q, want %q", got, naive(text, secret))
		}
	})
}

type sized struct {
	text string
	size int
}

func (s *sized) Read(into []byte) (int, error) {
	if s.text == "" {
		return 0, io.EOF
	}
	n := copy(into[:min(len(into), s.size)], s.text)
	s.text = s.text[n:]
	return n, nil
}

func BenchmarkJSON(b *testing.B) {
	m := Compile([]string{secrets[0], "another-secret-of-20", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"})
	line := []byte(`{"id":"chatcmpl-123","choices":[{"delta":{"content":"Hello \"world\"\n, how are you?"}}],"usage":{"total":123}}` + "\n")
	data := bytes.Repeat(line, 10000)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, _ = io.Copy(io.Discard, Reader(io.NopCloser(bytes.NewReader(data)), false, func() *Matcher { return m }))
	}
}
