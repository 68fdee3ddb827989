// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Names of the serial ports that the host gives the machine.
const (
	linkPort   = "casulo.link"
	outputPort = "casulo.output"
)

// portPatience bounds how long a port may take to appear after its driver was loaded.
const portPatience = 10 * time.Second

// longestOrder bounds one line from the host: an entrypoint and an environment of a MiB each, escaped.
const longestOrder = 16 << 20

// Reading while nobody is at the other end is tried again, ever more rarely: it keeps a processor awake.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// order is one line from the host.
type order struct {
	Do             string          `json:"do"`
	ID             int64           `json:"id"`
	Identity       identity        `json:"identity"`
	Limits         limits          `json:"limits"`
	Document       json.RawMessage `json:"document"`
	Command        []string        `json:"command"`
	TimeoutSeconds float64         `json:"timeout_seconds"`
	UnixNanos      int64           `json:"unix_nanos"`

	// Env is the whole environment of a sandbox that another one becomes; nil when it stays the same.
	Env map[string]string `json:"env"`
}

// limits are what the machine's kernel enforces; 0 means no limit of its own.
type limits struct {
	Pids     int64 `json:"pids"`
	SHMBytes int64 `json:"shm_bytes"`
}

// reply is one line to the host.
type reply struct {
	Event   string `json:"event"`
	ID      int64  `json:"id,omitempty"`
	Version string `json:"version,omitempty"`
	Code    int    `json:"code"`
	Output  string `json:"output,omitempty"`
	Error   string `json:"error,omitempty"`
	Message string `json:"message,omitempty"`
}

// link is the line between host and machine.
type link struct {
	lines *bufio.Reader
	mu    sync.Mutex
	port  io.Writer
}

func openLink() (*link, error) {
	port, err := openPort(linkPort)
	if err != nil {
		return nil, err
	}
	return newLink(port), nil
}

func newLink(port io.ReadWriter) *link {
	return &link{lines: bufio.NewReaderSize(port, 64<<10), port: port}
}

// openSerial waits for the port: the host names its ports only after the driver has asked.
func openSerial(name string) (*os.File, error) {
	for deadline := time.Now().Add(portPatience); ; {
		if device := findPort(name); device != "" {
			return os.OpenFile(device, os.O_RDWR, 0)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the machine has no serial port %s", name)
		}
		time.Sleep(time.Millisecond)
	}
}

func findPort(name string) string {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return ""
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(content)) == name {
			return "/dev/" + filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

func (l *link) receive() (*order, error) {
	line, err := l.line()
	if err != nil {
		return nil, fmt.Errorf("read from the host: %w", err)
	}
	received := &order{}
	if err := json.Unmarshal(line, received); err != nil {
		return nil, fmt.Errorf("parse the host's order: %w", err)
	}
	return received, nil
}

// line waits for one that is not empty. A read ends early each time the host's end is closed.
func (l *link) line() ([]byte, error) {
	var whole []byte
	retry := firstRetry
	for {
		part, err := l.lines.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case len(whole) > longestOrder:
			return nil, errors.New("an order is too long")
		case err == nil && len(whole) > 1:
			return whole, nil
		case err == nil:
			whole = nil
		case errors.Is(err, bufio.ErrBufferFull):
		default: // nobody is at the other end now
			whole = nil
			time.Sleep(retry)
			retry = min(2*retry, lastRetry)
		}
	}
}

func (l *link) send(message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return l.sendRaw(body)
}

func (l *link) sendRaw(body []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.port.Write(append(body, '\n'))
	return err
}

// failed reports a machine that could not be brought up.
func (l *link) failed(cause error) {
	// The console shows the cause as well; there is nobody else to tell.
	_ = l.send(reply{Event: "failed", Code: 1, Message: cause.Error()})
}
