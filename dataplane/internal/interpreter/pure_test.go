// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"casulo.dev/dataplane/internal/output"
	"casulo.dev/dataplane/internal/stream"
)

func TestFramesSurviveTheWay(t *testing.T) {
	for _, fields := range [][]string{{"done"}, {"run", "", "a\x00b"}, {"result", strings.Repeat("x", 1<<20)}} {
		f, err := readFrame(bufio.NewReader(bytes.NewReader(appendFrame(nil, fields...))))
		if err != nil {
			t.Fatal(err)
		}
		for i, field := range fields {
			if f.field(i) != field {
				t.Errorf("field %d of %q", i, fields[0])
			}
		}
		if f.field(len(fields)) != "" {
			t.Error("a field that is not there")
		}
	}
}

func TestBrokenFramesAreRefused(t *testing.T) {
	number := func(numbers ...uint32) []byte {
		var data []byte
		for _, n := range numbers {
			data = binary.BigEndian.AppendUint32(data, n)
		}
		return data
	}
	for name, data := range map[string][]byte{
		"empty": number(0), "too many": number(maxFields + 1), "too long": number(1, maxFrame+1),
		"together too long": append(append(number(2, 1<<20), make([]byte, 1<<20)...), number(maxFrame)...),
		"cut":               number(1, 10),
		"garbage":           []byte("hello there"),
	} {
		if f, err := readFrame(bufio.NewReader(bytes.NewReader(data))); err == nil {
			t.Errorf("%s: %v", name, f)
		}
	}
}

func TestGoCellsAreCut(t *testing.T) {
	code := "package main\nimport (\n\t\"fmt\"\n)\ntype P struct { X int }\nfunc (p *P) Get() int { return p.X }\n" +
		"func free[T any](t T) {}\nconst A, B = 1, 2\nvar V int\nx, err := f(func() int {\n return 1\n})\n" +
		"func() { _ = 1 }()\nfunc main() {}\nx++; fmt.Println(x)"
	var kinds []string
	for _, c := range cutGo(code, 1) {
		kinds = append(kinds, fmt.Sprint(c.kind, c.line, c.names))
	}
	want := []string{
		"5 1 []", "1 2 []", "2 5 [P]", "2 6 [P.Get]", "2 7 [free]", "2 8 [A B]", "3 9 [V]", "0 10 [x err]",
		"0 13 []", "4 14 [main]", "0 15 []", "0 15 []",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("%q", kinds)
	}
}

func TestShownExpressions(t *testing.T) {
	for text, want := range map[string]bool{
		"x": true, "1 + 1": true, "f(2)": true, `fmt.Sprintf("x")`: true, "time.Now()": true, "p.Sum()": true,
		`fmt.Println("x")`: false, "x = 1": false, "x++": false, "panic(1)": false, "time.Sleep(1)": false, "for {}": false,
	} {
		if isShown(text) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func TestGoProgramUsesOnlyWhatItMentions(t *testing.T) {
	memory := goMemory{lost: map[string]string{}}
	memory.addImports("import (\n\"fmt\"\nstr \"strings\"\n\"math/rand/v2\"\n)")
	text := memory.program("x := str.ToUpper(\"a\")\nx", 3).text()
	for part, want := range map[string]bool{
		`import str "strings"`: true, `"fmt"`: false, `"math/rand/v2"`: false, "//line cell-3:1": true,
		"casuloShow(x)": true, `casuloSave("x", &x)`: true,
	} {
		if strings.Contains(text, part) != want {
			t.Errorf("%q in\n%s", part, text)
		}
	}
	if text := memory.program("rand.Int()", 1).text(); !strings.Contains(text, `"math/rand/v2"`) {
		t.Error(text)
	}
}

func TestVersionsMatchAsFarAsBothTell(t *testing.T) {
	for _, c := range []struct {
		version, wanted string
		want            bool
	}{
		{"3.12", "3.12", true}, {"3.12.4", "3.12", true}, {"3.12", "3.12.4", true}, {"3.1", "3.12", false},
		{"17", "17.0.9", true}, {"17", "21", false}, {"", "3", false}, {"3.11", "v3.11", true}, {"20.11.1", "20", true},
	} {
		if matches(c.version, c.wanted) != c.want {
			t.Errorf("%s for %s", c.version, c.wanted)
		}
	}
}

func TestInstalledVersionsComeFromPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cpython-3.12.4-linux/bin/python3", "cpython-3.9.1/bin/python3", "broken/bin/python3"} {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, nil, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(dir, "python3.8-config"), nil, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "python3.8"), nil, 0o755))
	chain := toolchain{versions: []string{dir + "/*/bin/python3", dir + "/python3.*"}}
	var versions []string
	for _, each := range chain.installed() {
		versions = append(versions, each.version)
	}
	slices.Sort(versions)
	if !slices.Equal(versions, []string{"3.12.4", "3.8", "3.9.1"}) {
		t.Errorf("%v", versions)
	}
}

func TestChangesOfFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("same.txt", "x")
	write("old.csv", "x")
	before := look(dir)
	write("old.csv", "xy")
	write("a/b/new.JSON", "{}")
	write("node_modules/skipped.js", "")
	write(".hidden/skipped.js", "")
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	files, truncated := before.changes(dir)
	want := []stream.File{
		{Path: dir + "/a/b/new.JSON", Size: 2, MIME: "application/json", Change: "created"},
		{Path: dir + "/old.csv", Size: 2, MIME: "text/csv", Change: "modified"},
	}
	if !slices.Equal(files, want) || truncated {
		t.Errorf("%v %v", files, truncated)
	}
}

func TestChangesElsewhere(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(there, "before"), nil, 0o644))
	time.Sleep(5 * clockStep)
	seen := look(here)
	must(t, os.WriteFile(filepath.Join(there, "after"), nil, 0o644))
	files, _ := seen.changes(there)
	if len(files) != 1 || files[0].Path != there+"/after" {
		t.Errorf("%v", files)
	}
}

func TestQueueGathersOutputAndKeepsTheOrder(t *testing.T) {
	q := newQueue()
	q.print(output.Stdout, []byte("a"))
	q.print(output.Stdout, []byte("b"))
	q.print(output.Stderr, []byte("c"))
	q.add(func(*stream.Cell) {}, 1)
	q.print(output.Stdout, []byte("d"))
	q.end(func(*stream.Cell) {})
	q.print(output.Stdout, []byte("too late"))
	items, ended := q.take()
	var told []string
	for _, each := range items {
		told = append(told, string(each.data))
	}
	if !ended || !slices.Equal(told, []string{"ab", "c", "", "d", ""}) {
		t.Errorf("%q %v", told, ended)
	}
}

func TestFullQueueHoldsTheCellUntilNobodyListens(t *testing.T) {
	q := newQueue()
	done := make(chan struct{})
	go func() {
		for range 100 {
			q.print(output.Stdout, make([]byte, maxPiece))
		}
		close(done)
	}()
	select {
	case <-done:
		t.Fatal("nothing was held back")
	case <-time.After(50 * time.Millisecond):
	}
	q.abandon()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("a cell without a listener is held back")
	}
}

func TestExitStatusOfBash(t *testing.T) {
	if exitFailure("000") != nil {
		t.Error("0 is no failure")
	}
	if f := exitFailure("007"); f.Value != "7" || f.Name != nameExit {
		t.Errorf("%+v", f)
	}
}

func TestPythonArchiveHasAllModules(t *testing.T) {
	content, err := driverText(pythonDriver)
	must(t, err)
	for _, name := range []string{"__init__.py", "main.py", "cells.py", "wire.py"} {
		if !bytes.Contains(content, []byte("casulo_python/"+name)) {
			t.Errorf("%s is missing", name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
