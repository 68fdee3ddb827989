// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"os"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"listen":["tcp://127.0.0.1:0"]}`, `{}`, `null`, `{"listen":[],"user":{"uid":-1}}`, `{"listen":[""],"pre_start":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		document, err := Parse(content)
		if err == nil && len(document.Listen) == 0 {
			t.Errorf("%s was accepted", content)
		}
	})
}

func TestNameFiles(t *testing.T) {
	files := []*os.File{os.Stdin, os.Stdout}
	for message, want := range map[string]string{
		`{"v":1,"fds":["boot","log"]}`: "", `{"v":2,"fds":["boot","log"]}`: "version 2", `{"v":1,"fds":["boot"]}`: "names 1", `x`: "parse",
	} {
		named, err := nameFiles([]byte(message), files)
		switch {
		case want == "" && (err != nil || named["boot"] != os.Stdin || named["log"] != os.Stdout):
			t.Error(named, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Error(message, err)
		}
	}
}

func TestReceiveStream(t *testing.T) {
	good := `{"v":1,"document":{"sandbox_id":"s","listen":["tcp://127.0.0.1:0"]}}`
	for line, want := range map[string]string{
		good + "\n": "", good: "without a whole message", "": "without a whole message", "x\n": "parse",
		`{"v":2,"document":{}}` + "\n": "version 2", `{"v":1}` + "\n": "parse the boot document",
		strings.Repeat(" ", maxLine) + good + "\n": "longer than",
	} {
		out, err := os.Create(t.TempDir() + "/out")
		if err != nil {
			t.Fatal(err)
		}
		channel, document, err := ReceiveStream(strings.NewReader(line), out)
		switch {
		case want == "" && (err != nil || document.SandboxID != "s"):
			t.Error(document, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.80q: %v", line, err)
		}
		if err := channel.Ready("1", nil); err != nil {
			t.Error(err)
		}
		if told, err := os.ReadFile(out.Name()); err != nil || string(told) != `{"event":"ready","version":"1"}`+"\n" {
			t.Errorf("%q %v", told, err)
		}
	}
}

func TestListen(t *testing.T) {
	path := t.TempDir() + "/socket"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listeners, actual, err := Listen([]string{"tcp://127.0.0.1:0", "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	closeAll(listeners)
	if strings.HasSuffix(actual[0], ":0") || actual[1] != "unix://"+path {
		t.Error(actual)
	}
	for _, address := range []string{"127.0.0.1:0", "udp://127.0.0.1:0", "tcp://999.0.0.1:0"} {
		if _, _, err := Listen([]string{address}); err == nil {
			t.Errorf("%s was accepted", address)
		}
	}
}
