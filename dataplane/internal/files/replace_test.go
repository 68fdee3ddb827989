// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
)

func FuzzSubstitute(f *testing.F) {
	f.Add("aXbXc", "X", "YY", 3)
	f.Add("aaaa", "aa", "a", 1)
	f.Fuzz(func(t *testing.T, text, old, replacement string, pad int) {
		if old == "" {
			return
		}
		if pad = pad % 3; pad > 0 {
			text = strings.Repeat("x", replaceBuffer*pad-len(text)/2) + text
		}
		var out bytes.Buffer
		count, err := substitute(&out, iotest.HalfReader(strings.NewReader(text)), []byte(old), []byte(replacement))
		if err != nil || count != strings.Count(text, old) || out.String() != strings.ReplaceAll(text, old, replacement) {
			t.Fatalf("%d of %d, %v", count, strings.Count(text, old), err)
		}
	})
}

func TestReplaceInABigFile(t *testing.T) {
	b := newBench(t)
	line := "some text of no interest\n"
	write(t, b.at("f"), strings.Repeat(line, 400000)+"needle"+strings.Repeat(line, 400000)+"needle")
	var counts map[string]replaceResult
	b.post("/files/replace?verbose=true", map[string]any{b.at("f"): replacement{"needle", "thread"}}).want(200).decode(&counts)
	same(t, counts[b.at("f")].ReplacedCount, 2)
	same(t, read(t, b.at("f")), strings.Repeat(line, 400000)+"thread"+strings.Repeat(line, 400000)+"thread")
}
