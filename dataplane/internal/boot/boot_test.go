// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

func TestReceiveParked(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/document"
	if err := os.WriteFile(path, []byte(`{"sandbox_id":"s","listen":["tcp://127.0.0.1:0"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	document, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	send := func(message string, file *os.File) {
		if err := unix.Sendmsg(pair[0], []byte(message), unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
			t.Error(err)
		}
	}
	send(`{"v":1,"fds":["events"]}`, os.Stderr)
	prepared := func(channel *Channel) error {
		if channel.Events == nil || channel.Log != nil {
			t.Error(channel)
		}
		send(`{"v":1,"fds":["boot"]}`, document)
		return nil
	}
	channel, parsed, err := Receive(pair[1], prepared)
	if err != nil || parsed.SandboxID != "s" || channel.Events == nil {
		t.Fatal(parsed, err)
	}
	told := make([]byte, 100)
	n, err := unix.Read(pair[0], told)
	if err != nil || string(told[:n]) != `{"event":"parked"}` {
		t.Errorf("%q %v", told[:n], err)
	}
}

func TestReceiveParkedAndAbandoned(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(pair[0], []byte(`{"v":1,"fds":["log"]}`), unix.UnixRights(2), nil, 0); err != nil {
		t.Fatal(err)
	}
	left := func(*Channel) error { return unix.Close(pair[0]) }
	if _, _, err := Receive(pair[1], left); err == nil {
		t.Error("a starter that left is no starter")
	}
}

func TestReceiveTellsWhatIsWrong(t *testing.T) {
	for message, want := range map[string]string{
		"x": "parse the boot message", `{"v":2,"fds":[]}`: "version 2", `{"v":1,"fds":["boot"]}`: "names 1 descriptors",
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(pair[0], []byte(message), nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		channel, _, cause := Receive(pair[1], nil)
		if cause == nil || !strings.Contains(cause.Error(), want) {
			t.Fatal(cause)
		}
		if err := channel.Failed("C", cause); err != nil {
			t.Error(err)
		}
		told := make([]byte, 1000)
		if n, err := unix.Read(pair[0], told); err != nil || !strings.Contains(string(told[:n]), want) {
			t.Errorf("%q %v", told[:n], err)
		}
	}
}
