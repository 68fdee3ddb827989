// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// mostOutput is what is kept of a warm-up command's output.
const mostOutput = 16 << 10

// warmPath is where warm-up commands are looked for.
const warmPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runCommand runs one command of a template's warm-up to its end.
func runCommand(order *order) (int, string, error) {
	if len(order.Command) == 0 {
		return 0, "", errors.New("the warm-up command is empty")
	}
	limit := time.Duration(order.TimeoutSeconds * float64(time.Second))
	bounded, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var output bytes.Buffer
	command := exec.CommandContext(bounded, order.Command[0], order.Command[1:]...)
	command.Env = []string{warmPath, "HOME=/root", "LANG=C.UTF-8"}
	command.Dir = "/"
	command.Stdout, command.Stderr = &output, &output
	command.WaitDelay = time.Second
	err := command.Run()
	said := output.String()
	said = said[max(0, len(said)-mostOutput):]
	var exit *exec.ExitError
	switch {
	case bounded.Err() != nil:
		return -1, said, fmt.Errorf("it did not end within %s", limit)
	case errors.As(err, &exit):
		return exit.ExitCode(), said, nil
	}
	return 0, said, err
}
