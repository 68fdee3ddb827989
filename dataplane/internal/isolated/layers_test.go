// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// layerIn makes a layer over a directory, both empty.
func layerIn(t *testing.T) (made *layer, lower, upper string) {
	t.Helper()
	lower, upper = t.TempDir(), t.TempDir()
	root, err := os.OpenRoot(upper)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return &layer{path: "/workspace", target: lower, upper: root}, lower, upper
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func kinds(t *testing.T, l *layer) []string {
	t.Helper()
	changes, err := l.diff()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, c := range changes {
		found = append(found, c.Kind+" "+c.Path)
	}
	return found
}

func TestDiffAndCommit(t *testing.T) {
	l, lower, upper := layerIn(t)
	write(t, filepath.Join(lower, "same"), "same")
	write(t, filepath.Join(upper, "same"), "same")
	write(t, filepath.Join(lower, "changed"), "old!")
	write(t, filepath.Join(upper, "changed"), "new!")
	write(t, filepath.Join(upper, "sub/added"), "a")
	write(t, filepath.Join(lower, "turned/file"), "f")
	write(t, filepath.Join(upper, "turned"), "now a file")
	want := []string{
		"modified /workspace/changed", "added /workspace/sub", "added /workspace/sub/added", "modified /workspace/turned",
	}
	if got := kinds(t, l); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	changes, err := l.diff()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.commit(changes); err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, l); len(got) != 0 {
		t.Errorf("after the commit: %q", got)
	}
	if text, err := os.ReadFile(filepath.Join(lower, "turned")); err != nil || string(text) != "now a file" {
		t.Errorf("%q %v", text, err)
	}
}

func TestWhiteoutsAreDeletions(t *testing.T) {
	l, lower, upper := layerIn(t)
	write(t, filepath.Join(lower, "gone"), "x")
	if err := unix.Mknod(filepath.Join(upper, "gone"), unix.S_IFCHR, 0); err != nil {
		t.Skipf("whiteouts cannot be made here: %v", err)
	}
	if got := kinds(t, l); !slices.Equal(got, []string{"deleted /workspace/gone"}) {
		t.Errorf("%q", got)
	}
}

func TestACommitStaysBelowItsDirectory(t *testing.T) {
	l, lower, upper := layerIn(t)
	outside := t.TempDir()
	write(t, filepath.Join(upper, "sub/file"), "text")
	changes, err := l.diff()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(lower, "sub")); err != nil {
		t.Fatal(err)
	}
	// The link is replaced by the directory that the session made, or refused: never followed.
	commitErr := l.commit(changes)
	if _, err := os.Stat(filepath.Join(outside, "file")); err == nil {
		t.Errorf("the commit left its directory (error: %v)", commitErr)
	}
}
