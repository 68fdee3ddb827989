// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/api"
)

const (
	maxMetadata = 1 << 20
	// A refused upload is read on for a while, so that a caller in the middle of sending gets to read the answer.
	drainTime  = 5 * time.Second
	drainPause = 250 * time.Millisecond // a caller silent for so long is waiting, not sending
)

// metadata precedes each file of an upload.
type metadata struct {
	Path string `json:"path"`
	permission
}

// upload receives pairs of metadata and file parts. Every file is first written beside its target; when the closing
// delimiter has arrived and all of them are on the disk, they are renamed into place in order.
func (c *call) upload() error {
	boundary, err := boundaryOf(c.request.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	batch := newBatch(c.service)
	defer batch.abandon()
	err = c.receive(boundary, batch)
	if err == nil {
		err = batch.commit()
	}
	if err != nil {
		c.drain()
		return err
	}
	return c.done()
}

func boundaryOf(contentType string) (string, error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || parameters["boundary"] == "" {
		return "", invalidFile("an upload is multipart/form-data with a boundary, not %q", contentType)
	}
	return parameters["boundary"], nil
}

func invalidFile(format string, args ...any) error {
	return fail(http.StatusBadRequest, api.CodeInvalidFile, format, args...)
}

// receive stages every file of the body.
func (c *call) receive(boundary string, batch *batch) error {
	parts, err := newMultipart(c.request.Body, boundary)
	if err != nil {
		return invalidFile("%v", err)
	}
	var waiting []metadata
	files := 0
	for {
		head, err := parts.next()
		switch {
		case errors.Is(err, io.EOF) && (len(waiting) > 0 || files == 0):
			return invalidFile("the upload has %d files for %d metadata parts", files, files+len(waiting))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.bodyFailed(err)
		case head.name == "metadata":
			item, err := c.readMetadata(parts)
			if err != nil {
				return err
			}
			waiting = append(waiting, item)
		case head.name == "file" && len(waiting) == 0:
			return invalidFile("a file part without a metadata part before it")
		case head.name == "file":
			if err := c.receiveFile(parts, waiting[0], batch); err != nil {
				return err
			}
			waiting = waiting[1:]
			files++
		}
	}
}

// bodyFailed tells a broken body from one that ended early.
func (c *call) bodyFailed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fail(http.StatusBadRequest, api.CodeInvalidContent, "the upload ended before its last delimiter: nothing was changed")
	}
	return fail(http.StatusBadRequest, api.CodeInvalidContent, "the upload could not be read: %v", err)
}

func (c *call) readMetadata(parts *multipartReader) (metadata, error) {
	var text []byte
	err := parts.data(func(piece []byte) error {
		text = append(text, piece...)
		if len(text) > maxMetadata {
			return invalidMetadata("a metadata part is larger than 1 MiB")
		}
		return nil
	})
	if err != nil {
		return metadata{}, c.sortOut(err)
	}
	var item metadata
	if err := json.Unmarshal(text, &item); err != nil {
		return metadata{}, invalidMetadata("metadata is not what an upload needs: %v", err)
	}
	if item.Path == "" {
		return metadata{}, invalidMetadata("metadata has no path")
	}
	return item, nil
}

func invalidMetadata(format string, args ...any) error {
	return fail(http.StatusBadRequest, api.CodeInvalidMetadata, format, args...)
}

// receiveFile writes one file part beside its target.
func (c *call) receiveFile(parts *multipartReader, item metadata, batch *batch) error {
	target, err := c.resolve(item.Path)
	if err != nil {
		return err
	}
	if target == "/" || strings.HasSuffix(item.Path, "/") {
		return conflict(target, "names a directory")
	}
	owner, err := item.ownership(c.service.accounts.get())
	if err != nil {
		return err
	}
	file, err := batch.stage(target)
	if err != nil {
		return err
	}
	err = parts.data(func(piece []byte) error {
		_, err := file.Write(piece)
		return failed("write", target, unwrapPath(err))
	})
	if err != nil {
		return c.sortOut(err)
	}
	if err := file.apply(item.Mode, owner); err != nil {
		return err
	}
	batch.seal(file)
	return nil
}

// sortOut separates errors of the file system, which are already named, from errors of the body.
func (c *call) sortOut(err error) error {
	var known *problem
	if errors.As(err, &known) || isPathError(err) {
		return err
	}
	return c.bodyFailed(err)
}

// drain reads on without keeping anything. A body that is not at its end then costs the connection.
func (c *call) drain() {
	control := http.NewResponseController(c.writer)
	buffer := make([]byte, 64<<10)
	var err error
	for end := time.Now().Add(drainTime); err == nil && time.Now().Before(end); {
		if err = control.SetReadDeadline(time.Now().Add(drainPause)); err == nil {
			_, err = c.request.Body.Read(buffer)
		}
	}
	if !errors.Is(err, io.EOF) {
		c.writer.Header().Set("Connection", "close")
	}
	_ = control.SetReadDeadline(time.Time{}) // the connection is either closed now or as it was before
}
