// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package inject

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"casulo.dev/dataplane/internal/vault"
)

func TestBordersOfChunksDoNotMatter(t *testing.T) {
	pairs := []pair{{"__KEY__2", "two"}, {"__KEY__", "a value that is longer"}, {"__K", "k"}}
	for text, want := range map[string]string{
		"":                     "",
		"plain":                "plain",
		"__KEY__":              "a value that is longer",
		"__KEY__2__KEY____KEY": "twoa value that is longerkEY",
		"___KEY__":             "_a value that is longer",
		"__KEY__ __KEY__2x__":  "a value that is longer twox__",
	} {
		for name, reader := range map[string]io.Reader{"whole": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text)),
			"halves": iotest.HalfReader(strings.NewReader(text)), "end with data": iotest.DataErrReader(strings.NewReader(text))} {
			got, err := io.ReadAll(&replacer{from: io.NopCloser(reader), pairs: pairs})
			if err != nil || string(got) != want {
				t.Errorf("%q in %s: %q %v", text, name, got, err)
			}
		}
	}
}

func TestValuesAreWrittenAsTheirPlaceNeedsThem(t *testing.T) {
	const value = `a"/b c&d=%` + "\n"
	for kind, want := range map[string]string{"application/json; charset=utf-8": `a\"/b c\u0026d=%\n`, "application/problem+json": `a\"/b c\u0026d=%\n`,
		"application/x-www-form-urlencoded": "a%22%2Fb+c%26d%3D%25%0A", "text/plain": value, "": value} {
		if got := bodyEncoding(kind)(value); got != want {
			t.Errorf("%s: %q", kind, got)
		}
	}
	if inPath(value) != "a%22%2Fb%20c&d=%25%0A" || inQuery(value) != "a%22%2Fb%20c%26d%3D%25%0A" {
		t.Error(inPath(value), inQuery(value))
	}
}

// large is a binding whose placeholder is short and whose value is as long as one can be.
func large() *vault.Binding {
	return &vault.Binding{Substitutions: []vault.Substitution{{Placeholder: "__K_", Value: strings.Repeat("v", 64<<10),
		Places: map[vault.Place]bool{vault.InPath: true, vault.InQuery: true, vault.InHeader: true, vault.InBody: true}}}}
}

func TestManyPlaceholdersDoNotFillTheMemory(t *testing.T) {
	const many = 16 << 10
	body := strings.Repeat("__K_", many)
	for name, length := range map[string]int64{"told": int64(len(body)), "chunked": -1} {
		r, _ := http.NewRequest("POST", "http://x.test/", io.NopCloser(strings.NewReader(body)))
		r.ContentLength = length
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := Body(r, large()); err != nil {
			t.Fatal(err)
		}
		buffer, read := make([]byte, 32<<10), 0
		for read < 32<<20 { // of the gigabyte that there is
			n, err := r.Body.Read(buffer)
			if read += n; err != nil || strings.Trim(string(buffer[:n]), "v") != "" {
				t.Fatal(name, read, err)
			}
		}
		runtime.ReadMemStats(&after)
		if r.ContentLength != -1 || after.Sys > before.Sys+(64<<20) {
			t.Errorf("%s: length %d, %d MiB more", name, r.ContentLength, (after.Sys-before.Sys)>>20)
		}
	}
	small, _ := http.NewRequest("POST", "http://x.test/", strings.NewReader(strings.Repeat("__K_", 40)))
	if err := Body(small, large()); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(small.Body); err != nil || len(got) != 40*64<<10 {
		t.Error(len(got), err)
	}
}

func TestHeadsGrowSoFarAndNoFurther(t *testing.T) {
	at := func(where vault.Place) *place { return newPlace(&vault.Vault{}, large(), where, asItIs) }
	for n, works := range map[int]bool{1: true, 4: true, 5: false, 10000: false} {
		fills := map[string]func() error{
			"path":  func() error { _, err := at(vault.InPath).put("/" + strings.Repeat("__K_", n)); return err },
			"query": func() error { _, err := at(vault.InQuery).put(strings.Repeat("__K_", n)); return err },
			"header": func() error {
				return inHeaders(at(vault.InHeader), http.Header{"A": []string{"__K_"}, "B": []string{strings.Repeat("__K_", n-1)}})
			},
		}
		for name, fill := range fills {
			if err := fill(); (err == nil) != works {
				t.Errorf("%d in the %s: %v", n, name, err)
			}
		}
	}
}
