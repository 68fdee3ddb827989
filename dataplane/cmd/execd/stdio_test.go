// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// bootStdio runs a daemon whose boot stream is its standard input and output; the message goes in whole.
func bootStdio(t *testing.T, message string) (answers *bufio.Scanner, printed *bytes.Buffer, wait func() int) {
	t.Helper()
	printed = &bytes.Buffer{}
	cmd := exec.Command(program, "--boot-stdio")
	cmd.Stdin, cmd.Stderr = strings.NewReader(message), printed
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return bufio.NewScanner(out), printed, func() int {
		_ = cmd.Wait() // the exit code says it
		return cmd.ProcessState.ExitCode()
	}
}

func stdioMessage(t *testing.T, script string) string {
	message, err := json.Marshal(map[string]any{"v": 1, "document": map[string]any{
		"listen": []string{"tcp://127.0.0.1:0"}, "entrypoint": []string{"/bin/sh", "-c", script}, "log_cap_bytes": 0,
	}})
	must(t, err)
	return string(message) + "\n"
}

func TestBootThroughStandardStreams(t *testing.T) {
	script := `echo to the log; exit 3`
	answers, printed, wait := bootStdio(t, stdioMessage(t, script))
	var lines []string
	for answers.Scan() {
		lines = append(lines, answers.Text())
	}
	equal(t, wait(), 3)
	equal(t, len(lines), 2)
	if !strings.Contains(lines[0], `"event":"ready"`) || !strings.Contains(lines[0], `"tcp://127.0.0.1:`) {
		t.Error(lines[0])
	}
	if !strings.HasPrefix(lines[1], `{"event":"exit","code":3,`) {
		t.Error(lines[1])
	}
	// Another daemon of this machine may have the probe's port, which this one then mentions first.
	if !strings.Contains("\n"+printed.String(), "\nto the log\n") {
		t.Error(printed.String())
	}
}

func TestBootStreamThatEndsEarly(t *testing.T) {
	answers, _, wait := bootStdio(t, `{"v":1,"docu`)
	equal(t, answers.Scan(), true)
	if !strings.Contains(answers.Text(), `"event":"failed"`) || !strings.Contains(answers.Text(), "without a whole message") {
		t.Error(answers.Text())
	}
	equal(t, wait(), 1)
}
