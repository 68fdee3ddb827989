// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxLine bounds the boot message of a stream: an entrypoint and an environment of a MiB each, escaped.
const maxLine = 16 << 20

// envelope is the boot message where no descriptor can carry the document.
type envelope struct {
	Version  int             `json:"v"`
	Document json.RawMessage `json:"document"`
}

// ReceiveStream waits for the starter's message on a stream of bytes, such as a pipe or a serial port. Each message
// is one line of JSON: one comes in, and the answer goes out, followed at the end by the exit event. The channel is
// also returned with an error, so that the starter can be told.
func ReceiveStream(in io.Reader, out *os.File) (*Channel, *Document, error) {
	channel := &Channel{Events: out, reply: func(body []byte) error {
		_, err := out.Write(append(body, '\n'))
		return err
	}}
	line, err := readLine(in)
	if err != nil {
		return channel, nil, err
	}
	var message envelope
	if err := json.Unmarshal(line, &message); err != nil {
		return channel, nil, fmt.Errorf("parse the boot message: %w", err)
	}
	if message.Version != 1 {
		return channel, nil, fmt.Errorf("the boot message has version %d, this daemon speaks 1", message.Version)
	}
	document, err := Parse(message.Document)
	return channel, document, err
}

func readLine(in io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: in, N: maxLine}
	line, err := bufio.NewReader(limited).ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case errors.Is(err, io.EOF) && limited.N == 0:
		return nil, fmt.Errorf("the boot message is longer than %d bytes", maxLine)
	case errors.Is(err, io.EOF):
		return nil, errors.New("the starter closed the boot stream without a whole message")
	}
	return nil, fmt.Errorf("read the boot message: %w", err)
}

// TakeStdio claims standard input and output for the boot stream and leaves the null device in their place, so that
// nothing else can write there. A write to a starter that is gone is an error then, and not a deadly signal.
func TakeStdio() (in, out *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	taken := make([]*os.File, 2)
	for fd := range taken {
		moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, nil, fmt.Errorf("take descriptor %d: %w", fd, err)
		}
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, nil, fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
		taken[fd] = os.NewFile(uintptr(moved), "boot-stream")
	}
	return taken[0], taken[1], null.Close()
}
