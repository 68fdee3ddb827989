// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxMessage bounds the first message; the document itself comes through a descriptor.
const maxMessage = 64 << 10

// maxDescriptors bounds what one message can carry.
const maxDescriptors = 16

// Channel is the starter's end of the handshake and what came with it. Descriptors may be nil.
type Channel struct {
	// reply delivers one answer; without it there is nobody to answer.
	reply  func(body []byte) error
	Events *os.File
	Log    *os.File
	Cgroup *os.File
	Pids   *os.File
}

// NewChannel is a channel whose answer is passed to reply; the descriptors are for the caller to fill in.
func NewChannel(reply func([]byte) error) *Channel { return &Channel{reply: reply} }

// order names the descriptors of a message, in the order in which they are attached.
type order struct {
	Version int      `json:"v"`
	FDs     []string `json:"fds"`
}

// answer is the one message back.
type answer struct {
	Event   string   `json:"event"`
	Version string   `json:"version,omitempty"`
	Listen  []string `json:"listen,omitempty"`
	Code    string   `json:"code,omitempty"`
	Message string   `json:"message,omitempty"`
}

// Receive waits for the starter's message on a SOCK_SEQPACKET descriptor and reads the document.
//
// A starter that does not know yet what the sandbox shall be sends the descriptors first. Then prepare is called, the
// starter is told that the daemon is parked, and the message with the document comes whenever it comes. The channel is also
// returned with an error, so that the starter can be told.
func Receive(fd int, prepare func(*Channel) error) (*Channel, *Document, error) {
	unix.CloseOnExec(fd)
	channel := &Channel{reply: datagramTo(fd)}
	file, err := channel.take(fd, 0)
	if err == nil && file == nil {
		if err = prepare(channel); err != nil {
			return channel, nil, err
		}
		if err = channel.send(answer{Event: "parked"}); err == nil {
			file, err = channel.take(fd, 0)
		}
	}
	if err != nil {
		return channel, nil, err
	}
	document, err := readDocument(file)
	return channel, document, err
}

// receive takes a message that holds everything.
func receive(fd, flags int) (*Channel, *Document, error) {
	channel := &Channel{reply: datagramTo(fd)}
	file, err := channel.take(fd, flags)
	if err != nil {
		return channel, nil, err
	}
	document, err := readDocument(file)
	return channel, document, err
}

// take receives one message, keeps its descriptors, and returns the one of the boot document, if it was there.
func (c *Channel) take(fd, flags int) (*os.File, error) {
	message, files, err := receiveMessage(fd, flags)
	if err != nil {
		return nil, err
	}
	named, err := nameFiles(message, files)
	if err != nil {
		return nil, err
	}
	for name, place := range map[string]**os.File{"events": &c.Events, "log": &c.Log, "cgroup": &c.Cgroup, "pids": &c.Pids} {
		if file := named[name]; file != nil {
			*place = file
		}
	}
	return named["boot"], nil
}

func receiveMessage(fd, flags int) ([]byte, []*os.File, error) {
	payload := make([]byte, maxMessage)
	control := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, controlLength, received, _, err := unix.Recvmsg(fd, payload, control, flags|unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) { // by a signal to this thread, such as those of the Go runtime
		n, controlLength, received, _, err = unix.Recvmsg(fd, payload, control, flags|unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("receive the boot message: %w", err)
	}
	if received&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, nil, errors.New("the boot message is too long or carries too many descriptors")
	}
	if n == 0 {
		return nil, nil, errors.New("the starter closed the boot channel without a message")
	}
	fds, err := descriptors(control[:controlLength])
	if err != nil {
		return nil, nil, err
	}
	files := make([]*os.File, len(fds))
	for i, received := range fds {
		files[i] = os.NewFile(uintptr(received), "boot")
	}
	return payload[:n], files, nil
}

func descriptors(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("parse the boot message's descriptors: %w", err)
	}
	var fds []int
	for i := range messages {
		received, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("parse the boot message's descriptors: %w", err)
		}
		fds = append(fds, received...)
	}
	return fds, nil
}

func nameFiles(message []byte, files []*os.File) (map[string]*os.File, error) {
	var given order
	if err := json.Unmarshal(message, &given); err != nil {
		return nil, fmt.Errorf("parse the boot message: %w", err)
	}
	if given.Version != 1 {
		return nil, fmt.Errorf("the boot message has version %d, this daemon speaks 1", given.Version)
	}
	if len(given.FDs) != len(files) {
		return nil, fmt.Errorf("the boot message names %d descriptors and carries %d", len(given.FDs), len(files))
	}
	named := make(map[string]*os.File, len(files))
	for i, name := range given.FDs {
		named[name] = files[i]
	}
	return named, nil
}

func readDocument(file *os.File) (*Document, error) {
	if file == nil {
		return nil, errors.New("the boot message carries no boot document")
	}
	content, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read the boot document: %w", err)
	}
	return Parse(content)
}

// Parse reads a boot document and refuses one that nothing could be started from.
func Parse(content []byte) (*Document, error) {
	document := &Document{Cwd: "/", StopGraceMS: 5000, LogCapBytes: 10 << 20}
	if err := json.Unmarshal(content, document); err != nil {
		return nil, fmt.Errorf("parse the boot document: %w", err)
	}
	if len(document.Listen) == 0 {
		return nil, errors.New("the boot document names no address to listen on")
	}
	return document, nil
}

// Ready tells the starter that calls are answered at these addresses.
func (c *Channel) Ready(version string, listen []string) error {
	return c.send(answer{Event: "ready", Version: version, Listen: listen})
}

// Failed tells the starter that there will be no sandbox, and why.
func (c *Channel) Failed(code string, cause error) error {
	return c.send(answer{Event: "failed", Code: code, Message: cause.Error()})
}

// send ends the use of the channel.
func (c *Channel) send(message answer) error {
	if c.reply == nil {
		return nil
	}
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	err = c.reply(body)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = nil
	}
	return err
}

// datagramTo keeps the bare descriptor: a file would be closed with its last use, and a later starter may
// come back to it.
func datagramTo(socket int) func([]byte) error {
	return func(body []byte) error {
		err := unix.Sendto(socket, body, unix.MSG_NOSIGNAL, nil)
		for errors.Is(err, unix.EINTR) {
			err = unix.Sendto(socket, body, unix.MSG_NOSIGNAL, nil)
		}
		return err
	}
}
