// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package inject

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
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
