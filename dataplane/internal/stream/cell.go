// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package stream

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/output"
)

// Heartbeat is how often a silent stream has to show that it is alive.
const Heartbeat = heartbeat

// Cell is the answer to one cell of code: output, rich results and files in the order in which they
// came about. One goroutine uses it.
type Cell struct {
	*Stream
	offset int64
}

// OpenCell commits the answer to a stream. Output keeps its line ends in either framing, because
// that is what clients of code expect.
func OpenCell(w http.ResponseWriter, r *http.Request) *Cell {
	s := Open(w, r)
	if _, exact := s.framing.(*rawFraming); !exact {
		s.framing = &textFraming{}
	}
	return &Cell{Stream: s}
}

// textFraming sends pieces as text at once. Only the start of an unfinished character waits.
type textFraming struct {
	held [3][]byte // by stream
}

func (f *textFraming) piece(out *buffer, p output.Piece) {
	data := append(f.held[p.Stream], p.Data...)
	whole := len(data) - output.Unfinished(data)
	if whole > 0 {
		out.add(appendText(out.bytes, kindOf(p.Stream), data[:whole]))
	}
	f.held[p.Stream] = append([]byte(nil), data[whole:]...)
}

func (f *textFraming) finish(out *buffer) {
	for stream, data := range f.held {
		if len(data) > 0 {
			out.add(appendText(out.bytes, kindOf(output.Stream(stream)), data))
		}
	}
	f.release()
}

func (f *textFraming) release() { f.held = [3][]byte{} }

// Begin names the context. Fresh tells that it has lost what earlier cells left in it.
func (c *Cell) Begin(id string, fresh bool) {
	event := appendQuoted(append(appendHead(c.out.bytes, "init"), `,"text":`...), id)
	if fresh {
		event = append(event, `,"fresh":true`...)
	}
	c.out.add(appendEnd(event))
	c.out.flush()
}

// Output sends what the cell printed.
func (c *Cell) Output(stream output.Stream, data []byte) {
	c.framing.piece(&c.out, output.Piece{Stream: stream, Offset: c.offset, Data: data})
	c.offset += int64(len(data))
}

// Representation is one form of a result.
type Representation struct {
	MIME string
	Data []byte
}

// Result sends a value in all its forms. Count is the number of the cell when the value is that of
// its last expression, and 0 when it was displayed on the way.
func (c *Cell) Result(count int, forms []Representation) {
	event := c.out.bytes
	if count > 0 {
		event = append(appendHead(event, "execution_count"), `,"execution_count":`...)
		event = appendEnd(strconv.AppendInt(event, int64(count), 10))
	}
	event = append(appendHead(event, "result"), `,"results":{`...)
	for i, form := range forms {
		if i > 0 {
			event = append(event, ',')
		}
		event = append(appendQuoted(event, wireName(form.MIME)), ':')
		event = appendForm(event, form)
	}
	event = append(event, '}')
	if count == 0 {
		event = append(event, `,"display":true`...)
	}
	c.out.add(appendEnd(event))
}

// wireName is how clients know a form: plain text has a short name.
func wireName(mime string) string {
	if mime == "text/plain" {
		return "text"
	}
	return mime
}

// appendForm writes JSON forms as JSON values and all others as strings.
func appendForm(dst []byte, form Representation) []byte {
	if strings.HasSuffix(form.MIME, "json") && json.Valid(form.Data) {
		compact, err := json.Marshal(json.RawMessage(form.Data))
		if err == nil {
			return appendASCII(dst, compact)
		}
	}
	return appendQuoted(dst, form.Data)
}

// appendASCII escapes what is not ASCII in a JSON text: such characters occur only inside strings.
func appendASCII(dst, text []byte) []byte {
	for len(text) > 0 {
		if text[0] < 0x7f {
			dst, text = append(dst, text[0]), text[1:]
			continue
		}
		var width int
		dst, width = appendRune(dst, string(text[:min(4, len(text))]))
		text = text[width:]
	}
	return dst
}

// File is a file that a cell made or changed.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	MIME   string `json:"mime"`
	Change string `json:"change"`
}

// Files lists what the cell left on disk. Clients that do not know the event pass over it.
func (c *Cell) Files(files []File, truncated bool) error {
	list, err := json.Marshal(files)
	if err != nil {
		return err
	}
	event := append(appendHead(c.out.bytes, "casulo.files"), `,"files":`...)
	event = appendASCII(event, list)
	if truncated {
		event = append(event, `,"truncated":true`...)
	}
	c.out.add(appendEnd(event))
	return nil
}

// Ping shows that the cell still runs.
func (c *Cell) Ping() {
	c.out.add(appendText(c.out.bytes, "ping", "pong"))
	c.out.flush()
}

// Flush hands everything to the connection. An error means that the client left.
func (c *Cell) Flush() error {
	c.out.flush()
	return c.out.err
}

// Complete ends the stream of a cell that ran to its end.
func (c *Cell) Complete(took time.Duration) {
	c.framing.finish(&c.out)
	c.Stream.Complete(took)
}

// Fail ends the stream of a cell that did not.
func (c *Cell) Fail(failure Failure) {
	c.framing.finish(&c.out)
	c.Stream.Fail(failure)
}
