// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"os/exec"
	"testing"
)

func FuzzWord(f *testing.F) {
	for _, seed := range []string{"/plain", "it's", "$HOME/x", "${HOME}y", "~/z", "a b;c", "$(id)", "`id`", "\\", "\"", "-n", "*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		for _, c := range path {
			if c == 0 {
				return
			}
		}
		quoted := quote(path)
		output, err := exec.Command("sh", "-c", "printf '%s' "+quoted).Output()
		if err != nil || string(output) != path {
			t.Errorf("%q quoted as %s comes out as %q: %v", path, quoted, output, err)
		}
	})
}

func TestWord(t *testing.T) {
	for given, want := range map[string]string{
		"/a b": `'/a b'`, "~/x": `"${HOME-}"'/x'`, "~": `"${HOME-}"`, "$A/${B}c": `"${A-}"'/'"${B-}"'c'`, "$(id)": `'$(id)'`, "it's": `'it'\''s'`,
	} {
		if got := word(given); got != want {
			t.Errorf("%s becomes %s, not %s", given, got, want)
		}
	}
}
