// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package environment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseFile(t *testing.T) {
	text := strings.Join([]string{
		`# comment`, ``, `A=plain value  `, `B="esc \" \\ \n\t\r $A \q"`, `C='lit $A`, `second line'`, `export D=${A}!`,
		`bad line`, `9X=1`, `E="unterminated`, `F='x' trailing`, `G="x" # comment`, `A=last`, `H=`, `I=$NONE-`, `J = spaced`,
	}, "\n")
	variables := Variables{}
	parseFile(text, variables)
	want := Variables{
		"A": "last", "B": "esc \" \\ \n\t\r plain value \\q", "C": "lit $A\nsecond line", "D": "plain value!",
		"G": "x", "H": "", "I": "-", "J": "spaced",
	}
	if fmt.Sprint(variables) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", variables, want)
	}
}

// entry writes a value the way the official client appends it to the file.
func entry(key, value string) string {
	if !strings.Contains(value, "'") {
		return key + "='" + value + "'\n"
	}
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(value)
	return key + `="` + escaped + "\"\n"
}

func FuzzParseFile(f *testing.F) {
	for _, seed := range []string{"a", "it's", "two\nlines", `back\slash`, `"`, "$HOME", "\\", "=#"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		parseFile(value, Variables{})
		variables := Variables{}
		parseFile("K=old\n"+entry("K", value)+"Z=end\n", variables)
		if strings.Contains(value, "'") && strings.Contains(value, "$") {
			// In double quotes the grammar expands variables; there is no way to write a dollar sign.
			return
		}
		if variables["K"] != value || variables["Z"] != "end" {
			t.Errorf("%q became %q (%q)", value, variables["K"], variables)
		}
	})
}

func TestComposeOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	env := New(map[string]string{"A": "1", "B": "1", "C": "1"}, file, "", User{})
	if got := env.Compose(map[string]string{"C": "3"}); got["A"]+got["B"]+got["C"] != "113" || got["EXECD_ENVS"] != file {
		t.Error(got)
	}
	if err := os.WriteFile(file, []byte("B=2\nC=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := env.Compose(map[string]string{"C": "3"})
	if got["A"]+got["B"]+got["C"] != "123" || !strings.Contains(got["PATH"], "/bin") {
		t.Error(got)
	}
	list := Variables{"B": "2", "A": "1", "": "x", "C": "\x00"}.List()
	if !slices.Equal(list, []string{"A=1", "B=2"}) {
		t.Error(list)
	}
}

func TestIdentify(t *testing.T) {
	env := New(nil, "", "/", User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	number := func(n int64) *int64 { return &n }
	for _, bad := range [][2]*int64{{nil, number(1)}, {number(-1), nil}, {number(1 << 32), nil}, {number(1), number(1<<32 - 1)}} {
		if _, err := env.Identify(bad[0], bad[1]); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
	own, err := env.Identify(nil, nil)
	if err != nil || own.Credential != nil {
		t.Error(own, err)
	}
	stranger, err := env.Identify(number(123456), nil)
	if err != nil || stranger.Credential.Uid != 123456 || stranger.Credential.Gid != 123456 {
		t.Error(stranger, err)
	}
}

func TestAccounts(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	if err := os.WriteFile(passwd, []byte("root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:100:Ann:/home/ann:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(group, []byte("a:x:7:bob,ann\nb:x:8:\nc:x:9:ann\nd:x:no:ann\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	account, found, err := findAccount(passwd, 1000)
	if err != nil || !found || account != (Account{Name: "ann", UID: 1000, GID: 100, Home: "/home/ann"}) {
		t.Error(account, found, err)
	}
	if groups := supplementary(group, "ann"); !slices.Equal(groups, []uint32{7, 9}) {
		t.Error(groups)
	}
	if _, found, err := findAccount(filepath.Join(dir, "none"), 0); found || err != nil {
		t.Error(found, err)
	}
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	variables := Variables{"PATH": "relative::" + dir}
	if path, err := variables.Program("run"); err != nil || path != filepath.Join(dir, "run") {
		t.Error(path, err)
	}
	for _, name := range []string{"data", "none"} {
		if path, err := variables.Program(name); err == nil {
			t.Error(path)
		}
	}
	if path, err := variables.Program("./x"); err != nil || path != "./x" {
		t.Error(path, err)
	}
	if shell, err := (Variables{"PATH": ""}).Shell(); err != nil || shell.Path == "" {
		t.Error(shell, err)
	}
}

func TestFileThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for kind, put := range map[string]func(name string) error{
		"pipe":    func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"endless": func(name string) error { return os.Symlink("/dev/zero", name) },
		"null":    func(name string) error { return os.Symlink("/dev/null", name) },
		"folder":  func(name string) error { return os.Mkdir(name, 0o700) },
		"nothing": func(string) error { return nil },
	} {
		name := filepath.Join(dir, kind)
		if err := put(name); err != nil {
			t.Fatal(err)
		}
		env := New(map[string]string{"A": "1"}, name, "", User{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			identity, err := env.Identify(nil, nil)
			if err != nil || env.ComposeFor(identity, nil)["A"] != "1" || env.Compose(nil)["A"] != "1" {
				t.Errorf("%s: %v", kind, err)
			}
		}()
		select {
		case <-done:
		case <-time.After(60 * time.Second):
			t.Fatalf("%s blocks", kind)
		}
	}
}

func TestFileThatIsTooLarge(t *testing.T) {
	name := filepath.Join(t.TempDir(), "env")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 1<<40)); err != nil {
		t.Fatal(err)
	}
	_, err := New(nil, name, "", User{}).Identify(nil, nil)
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Error(err)
	}
}

func TestUnmappedIDs(t *testing.T) {
	table := "         0 1000000000      65536\n     70000      70000          1\n"
	for id, want := range map[uint32]bool{0: true, 65535: true, 65536: false, 70000: true, 70001: false, 1 << 31: false} {
		if got := covers(table, id); got != want {
			t.Errorf("%d: %t", id, got)
		}
	}
	if covers("", 0) {
		t.Error("an empty table maps nobody")
	}
}
