// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
)

// TestQueriesThatNameNothing: an operation on no path, or on one that cannot be read, must not look done.
func TestQueriesThatNameNothing(t *testing.T) {
	b := newBench(t)
	write(t, b.at("a;b"), "x")
	for _, entry := range routes() {
		if entry.method == "POST" && entry.path != "/files/tar" {
			continue // Their paths come in the body.
		}
		for _, prefix := range []string{"", "/v1/filesystem/0/0"} {
			b.do(entry.method, prefix+entry.path, nil, nil).wantError(400, "MISSING_QUERY")
			b.do(entry.method, prefix+entry.path+"?path="+b.at("a;b"), nil, nil).wantError(400, "INVALID_REQUEST_BODY")
		}
	}
	b.remove("/files", b.at("a;b")).want(200)
	if _, err := os.Lstat(b.at("a;b")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestOwnersOutsideOfTheNamespace(t *testing.T) {
	b := newBench(t)
	write(t, b.at("f"), "x")
	table, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || strings.Contains(string(table), "4294967295") {
		t.Skip("everybody is mapped here")
	}
	b.post("/files/permissions", map[string]any{b.at("f"): map[string]any{"owner": "4000000000"}}).
		wantError(400, "INVALID_REQUEST_BODY")
}

func FuzzLineEnds(f *testing.F) {
	for _, seed := range []string{"a\rb", "a\r\nb\r", "\r\r\n\n\r", "\n\r", "", "\r\n"} {
		f.Add(seed)
	}
	ends := regexp.MustCompile("\r\n?")
	f.Fuzz(func(t *testing.T, text string) {
		want := strings.TrimSuffix(ends.ReplaceAllString(text, "\n"), "\n")
		var got strings.Builder
		out := bufio.NewWriter(&got)
		err := copyLines(out, iotest.OneByteReader(strings.NewReader(text)), lineRange{1, allLines})
		if err = errors.Join(err, out.Flush()); err != nil || got.String() != want {
			t.Errorf("%q became %q: %v", text, got.String(), err)
		}
	})
}
