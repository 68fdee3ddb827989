// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"encoding/json"
	"path"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestNamesRoundTrip(t *testing.T) {
	for _, name := range []string{"", "plain", "ümläut", "bad\xffname", "\x80\x81", "new\nline", "\U0010FE80", "\U0010FEFF\xff", "\xed\xb3\xbf", "a\xf4\x8f\xba"} {
		text := EscapeName(name)
		if !utf8.ValidString(text) {
			t.Errorf("%q: spelling %q is not Unicode", name, text)
		}
		same(t, UnescapeName(text), name)
	}
	same(t, EscapeName("bad\xffname"), "bad\U0010FEFFname")
	same(t, EscapeName("good ü"), "good ü")
}

func FuzzNames(f *testing.F) {
	f.Add("bad\xffname")
	f.Add("\U0010FE80\xf4\x8f")
	f.Fuzz(func(t *testing.T, name string) {
		text := EscapeName(name)
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var decoded string
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			t.Fatal(err)
		}
		if UnescapeName(decoded) != name {
			t.Fatalf("%q became %q", name, UnescapeName(decoded))
		}
	})
}

func TestModes(t *testing.T) {
	for digits, bits := range map[string]uint32{"755": 0o755, "1777": 0o1777, "0644": 0o644, "4755": 0o4755, "0": 0} {
		mode, err := ParseMode(digits)
		if err != nil || mode.Bits() != bits {
			t.Errorf("%s: %o, %v", digits, mode.Bits(), err)
		}
	}
	for _, digits := range []string{"888", "-1", "", "10000", "7.5", "rwx"} {
		if mode, err := ParseMode(digits); err == nil {
			t.Errorf("%q was taken as %d", digits, mode)
		}
	}
	var item struct{ Mode Mode }
	for text, want := range map[string]Mode{`{"mode":755}`: 755, `{"mode":"0600"}`: 600, `{"mode":null}`: 0, `{}`: 0, `{"mode":""}`: 0} {
		item.Mode = 0
		if err := json.Unmarshal([]byte(text), &item); err != nil || item.Mode != want {
			t.Errorf("%s: %d, %v", text, item.Mode, err)
		}
	}
}

func TestGlobs(t *testing.T) {
	cases := []struct {
		pattern, path string
		want          bool
	}{
		{"*", "a/b.txt", true}, {"**", "a/b.txt", true}, {"*.txt", "deep/er/b.txt", true}, {"*.txt", "b.text", false},
		{"b?txt", "b.txt", true}, {"b?txt", "bütxt", true}, {"b?txt", "b\xfftxt", true}, {"[a-c].go", "b.go", true},
		{"[!a-c].go", "b.go", false}, {"[^a-c].go", "z.go", true}, {"[]].go", "].go", true}, {"[a-].go", "-.go", true},
		{"src/**/*.py", "src/a.py", true}, {"src/**/*.py", "src/x/y/a.py", true}, {"src/**/*.py", "lib/a.py", false},
		{"**/test_*", "a/b/test_x", true}, {"**/test_*", "test_x", true}, {"src/*", "src/a/b", false}, {"/src/*", "src/a", true},
		{"a/**", "a/b/c", true}, {"a/**", "a", true}, {"*.{py,js}", "x.js", true}, {"*.{py,js}", "x.ts", false},
		{"{a,b{c,d}}", "bd", true}, {"{lonely}", "{lonely}", true}, {`\*`, "*", true}, {`\*`, "x", false},
		{"a*b*c", "aXbYbZc", true}, {"a*b*c", "aXbY", false}, {".*", ".hidden", true}, {"*", ".hidden", true},
		{"[{,}]", ",", true}, {"exact", "exact", true}, {"exact", "notexact", false}, {"a**b", "aXXb", true},
	}
	for _, c := range cases {
		glob, err := CompileGlob(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		} else if glob.Match(c.path) != c.want {
			t.Errorf("%q on %q is not %v", c.pattern, c.path, c.want)
		}
	}
	for _, bad := range []string{"[", "[a", `x\`, "a/[!", strings.Repeat("{a,b}", 12), strings.Repeat("x", maxPatternLength+1)} {
		if _, err := CompileGlob(bad); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
}

func TestGlobsTakeNoExponentialTime(t *testing.T) {
	for _, pattern := range []string{strings.Repeat("*a", 200) + "b", strings.Repeat("**/", 200) + "b", strings.Repeat("{", 1000)} {
		start := time.Now()
		glob, err := CompileGlob(pattern)
		if err == nil {
			glob.Match(strings.Repeat("a/", 500) + strings.Repeat("a", 250))
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("%.10q took %v", pattern, took)
		}
	}
}

func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"*", "**/a", "[a-z]*", "{a,b}", `\[`, "[]-a]"} {
		f.Add(seed, "a/b")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if glob, err := CompileGlob(pattern); err == nil {
			glob.Match(name)
		}
		literal, err := CompileGlob(quoteGlob(name))
		if err == nil && name != "" && !strings.Contains(name, "/") && !literal.Match(name) {
			t.Fatalf("%q does not match itself", name)
		}
	})
}

func quoteGlob(name string) string {
	var out strings.Builder
	for i := 0; i < len(name); i++ {
		out.WriteByte('\\')
		out.WriteByte(name[i])
	}
	return out.String()
}

func TestRanges(t *testing.T) {
	cases := []struct {
		header      string
		start, size int64
		ok, refused bool
	}{
		{"bytes=0-9", 0, 10, true, false}, {"bytes=90-", 90, 10, true, false}, {"bytes=-5", 95, 5, true, false},
		{"bytes=0-1000", 0, 100, true, false}, {"bytes=-1000", 0, 100, true, false}, {"bytes=5-5,7-8", 5, 1, true, false},
		{"bytes=100-", 0, 0, false, true}, {"bytes=-0", 0, 0, false, true}, {"bytes=99999999999999999999-", 0, 0, false, true},
		{"", 0, 0, false, false}, {"lines=1-2", 0, 0, false, false}, {"bytes=9-2", 0, 0, false, false},
		{"bytes=a-b", 0, 0, false, false}, {"bytes=+1-2", 0, 0, false, false}, {"bytes=-", 0, 0, false, false},
	}
	for _, c := range cases {
		part, ok, err := parseRange(c.header, 100)
		if part.Start != c.start || part.Length != c.size || ok != c.ok || (err != nil) != c.refused {
			t.Errorf("%q: %+v %v %v", c.header, part, ok, err)
		}
	}
}

func FuzzRange(f *testing.F) {
	f.Add("bytes=0-9", int64(100))
	f.Add("bytes=-1", int64(0))
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		part, ok, err := parseRange(header, size)
		if ok && (err != nil || part.Start < 0 || part.Length < 1 || part.Start > size-part.Length) {
			t.Fatalf("%q of %d: %+v %v", header, size, part, err)
		}
	})
}

func TestAccounts(t *testing.T) {
	passwd := "root:x:0:0:root:/root:/bin/sh\n# comment\nbroken\nann:x:1000:1000::/home/ann:\nann2:x:1000:1000::/x:\nbig:x:99999999999:1::/:\n"
	group := "root:x:0:\nann:x:1000:\ndev:x:20:ann,bob\nops:x:21:bob\n"
	known := parseAccounts(passwd, group)
	same(t, known.owner(1000), "ann")
	same(t, known.owner(4711), "4711")
	same(t, known.group(20), "dev")
	uid, ok := known.uidOf("ann2")
	if !ok || uid != 1000 {
		t.Fatal(uid, ok)
	}
	if _, ok := known.uidOf("nobody-here"); ok {
		t.Fatal("an unknown name was found")
	}
	if uid, ok := known.uidOf("4711"); !ok || uid != 4711 {
		t.Fatal(uid, ok)
	}
	if groups := known.supplementary(1000); len(groups) != 1 || groups[0] != 20 {
		t.Fatal(groups)
	}
	if groups := parseAccounts("", "").supplementary(0); len(groups) != 0 {
		t.Fatal(groups)
	}
}

// FuzzResolve: whatever a request calls a path becomes an absolute, clean one, or an error.
func FuzzResolve(f *testing.F) {
	for _, seed := range []string{"~", "~/x", "$HOME/../x", "${HOME", "a//b/..", "/..", "$UNSET/", "\U0010FEFF", "a\x00"} {
		f.Add(seed)
	}
	service := &Service{config: Config{Base: "/base", Lookup: func(name string) (string, bool) { return "/home/" + name, name != "UNSET" }}}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := (&call{service: service}).resolve(text)
		if err == nil && (p != path.Clean(p) || !path.IsAbs(p) || strings.ContainsRune(p, 0)) {
			t.Fatalf("%q became %q", text, p)
		}
	})
}
