// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// download sends a file, a range of it, or some of its lines.
func (c *call) download() error {
	p, err := c.path()
	if err != nil {
		return err
	}
	lines, err := linesOf(c.request.URL.Query())
	if err != nil {
		return err
	}
	wanted := c.request.Header.Get("Range")
	if lines != nil && wanted != "" {
		return badRequest("a Range header and offset/limit exclude each other")
	}
	file, st, err := openRegular(p)
	if err != nil {
		return err
	}
	defer closeQuietly(file)
	if lines != nil {
		return c.sendLines(file, *lines)
	}
	c.describeDownload(p, st)
	if st.size == 0 {
		return c.sendUnsized(file)
	}
	return c.sendRange(file, st.size, wanted)
}

// openRegular opens a file for reading, links followed. O_NONBLOCK keeps a pipe without a writer from holding us up;
// it means nothing for regular files.
func openRegular(p string) (*os.File, *status, error) {
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, failed("open", p, err)
	}
	st, err := statFD(fd)
	if err == nil && st.isRegular() {
		return os.NewFile(uintptr(fd), p), st, nil
	}
	closeFD(fd)
	if err != nil {
		return nil, nil, failed("open", p, err)
	}
	what := "is not a regular file"
	if st.isDir() {
		what = "is a directory"
	}
	return nil, nil, fail(http.StatusBadRequest, api.CodeInvalidFile, "%s %s", EscapeName(p), what)
}

func (c *call) describeDownload(p string, st *status) {
	header := c.writer.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Disposition", disposition(path.Base(p)))
	header.Set("Accept-Ranges", "bytes")
	header.Set("Last-Modified", st.modified.UTC().Format(http.TimeFormat))
}

// disposition offers the exact name in the encoded form, and a plain one for clients that do not know it.
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
			return '_'
		}
		return r
	}, name)
	if plain == name {
		return `attachment; filename="` + name + `"`
	}
	encoded := strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + encoded
}

// sendRange sends all of the file or the part asked for. The length is promised first, so a file that shrinks
// meanwhile ends in a broken connection instead of a short success.
func (c *call) sendRange(file *os.File, size int64, wanted string) error {
	part, partial, err := parseRange(wanted, size)
	header := c.writer.Header()
	if err != nil {
		for name := range header {
			header.Del(name)
		}
		header.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		return fail(http.StatusRequestedRangeNotSatisfiable, api.CodeInvalidRequest, "the file has %d bytes: %v", size, err)
	}
	code := http.StatusOK
	if partial {
		code = http.StatusPartialContent
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Start, part.Start+part.Length-1, size))
		if _, err := file.Seek(part.Start, io.SeekStart); err != nil {
			return failed("seek", file.Name(), unwrapPath(err))
		}
	} else {
		part.Length = size
	}
	header.Set("Content-Length", strconv.FormatInt(part.Length, 10))
	return c.sendBytes(file, code, part.Length)
}

// sendBytes lets the kernel move the data: the response writer turns this copy into sendfile.
func (c *call) sendBytes(file *os.File, code int, length int64) error {
	c.committed = true
	c.writer.WriteHeader(code)
	if c.request.Method == http.MethodHead {
		return nil
	}
	sent, err := io.CopyN(c.writer, file, length)
	if err != nil {
		return fmt.Errorf("sent %d of %d bytes: %w", sent, length, err)
	}
	return nil
}

// sendUnsized serves files that claim no size. Those under /proc and /sys have content all the same; what fits one
// buffer is sent with its length, the rest chunked.
func (c *call) sendUnsized(file *os.File) error {
	buffer := make([]byte, 64<<10)
	n, err := io.ReadFull(file, buffer)
	ended := err == io.EOF || err == io.ErrUnexpectedEOF
	if err != nil && !ended {
		return failed("read", file.Name(), unwrapPath(err))
	}
	if wanted := c.request.Header.Get("Range"); wanted != "" && ended {
		return c.sendBufferRange(buffer[:n], wanted)
	}
	if ended {
		c.writer.Header().Set("Content-Length", strconv.Itoa(n))
	}
	c.committed = true
	c.writer.WriteHeader(http.StatusOK)
	if c.request.Method == http.MethodHead {
		return nil
	}
	if _, err := c.writer.Write(buffer[:n]); err != nil || ended {
		return err
	}
	_, err = io.Copy(c.writer, file)
	return err
}

func (c *call) sendBufferRange(content []byte, wanted string) error {
	part, partial, err := parseRange(wanted, int64(len(content)))
	if err != nil {
		return fail(http.StatusRequestedRangeNotSatisfiable, api.CodeInvalidRequest, "the file has %d bytes: %v", len(content), err)
	}
	code := http.StatusOK
	if partial {
		code = http.StatusPartialContent
		last := part.Start + part.Length - 1
		c.writer.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Start, last, len(content)))
		content = content[part.Start : last+1]
	}
	c.writer.Header().Set("Content-Length", strconv.Itoa(len(content)))
	c.committed = true
	c.writer.WriteHeader(code)
	_, err = c.writer.Write(content)
	return err
}
