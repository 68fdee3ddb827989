// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors of a bash context, far above those that scripts use. User code sees none of them.
const bashText = 90

var bashAt = descriptors{orders: 0, frames: 93, stdout: 91, stderr: 92}

// Bash needs no driver: it is told what to do line by line. It runs as an interactive shell, because
// only such a one survives an interrupt: that aborts the line with the user's code, and the next
// line reports. Each line is complete in itself, so that nothing in the code can reach over.
const (
	bashPrepare = `PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o history +H; history -c; shopt -u checkwinsize; ` +
		`\builtin printf '\0\0\0\1\0\0\0\5ready' >&93` + "\n"
	bashRun = `IFS= \builtin read -r -d '' __casulo </proc/self/fd/90 || \builtin :; ` +
		`\builtin export -n __casulo; \builtin eval "$__casulo" 0</dev/null 1>&91 2>&92 90<&- 91>&- 92>&- 93>&-` + "\n"
	// Two fields, "exit" and three digits: the frame's bytes are constant but for the digits.
	bashReport = `\builtin printf '\0\0\0\2\0\0\0\4exit\0\0\0\3%03d' "$?" >&93; \builtin unset __casulo` + "\n"
)

func startBash(l launch) (engine, error) {
	shell, err := l.variables.Shell()
	if err != nil || !shell.Bash {
		return nil, errors.New("bash was not found in the image: install it there, or run commands with sh")
	}
	fd, err := unix.MemfdCreate("text", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep code in memory: %w", err)
	}
	text := os.NewFile(uintptr(fd), "text")
	// Interactive shells load a history; this one has nothing to do with whoever else used the account.
	l.variables["HISTFILE"] = os.DevNull
	d, err := newDriver(l, childSpec{
		path: shell.Path, argv: []string{"bash", "--norc", "--noprofile", "--noediting", "-i"},
		at: bashAt, files: map[int]*os.File{bashText: text},
	})
	if err != nil {
		return nil, errors.Join(err, text.Close())
	}
	d.submit = func(c *cell) error { return submitBash(d, text, c.code) }
	return &bashDriver{d, text}, d.order([]byte(bashPrepare))
}

// submitBash puts the code where the shell reads it from, and tells it to.
func submitBash(d *driver, text *os.File, code string) error {
	if err := text.Truncate(0); err != nil {
		return err
	}
	if _, err := io.WriteString(io.NewOffsetWriter(text, 0), code); err != nil {
		return err
	}
	return d.order([]byte(bashRun + bashReport))
}

// bashDriver also holds the memory in which code is handed over.
type bashDriver struct {
	*driver
	text *os.File
}

func (d *bashDriver) close() {
	d.driver.close()
	if err := d.text.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		logLost("text", err)
	}
}
