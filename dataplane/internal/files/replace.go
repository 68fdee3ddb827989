// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
)

const replaceBuffer = 1 << 20

type replacement struct {
	Old string `json:"old"`
	New string `json:"new"`
}

type replaceResult struct {
	ReplacedCount int `json:"replacedCount"`
}

// replace edits files: every occurrence of a text becomes another one. A link is followed, because its target is
// where the old text was found.
func (c *call) replace() error {
	var items map[string]replacement
	if !c.readJSON(&items) {
		return nil
	}
	for text, item := range items {
		if item.Old == "" {
			return badRequest("%s: the text to replace is empty", text)
		}
	}
	results := map[string]replaceResult{}
	for _, text := range slices.Sorted(maps.Keys(items)) {
		p, err := c.resolve(text)
		if err != nil {
			return err
		}
		count, err := c.replaceIn(p, items[text])
		if err != nil {
			return err
		}
		results[spelled(text)] = replaceResult{count}
	}
	if c.view.CountReplacements || c.request.URL.Query().Get("verbose") == "true" {
		return c.answer(results)
	}
	return c.done()
}

// replaceIn reads the file twice: the first time only to count, so that a file without the text is not touched.
func (c *call) replaceIn(p string, item replacement) (int, error) {
	target, err := filepath.EvalSymlinks(p)
	if err != nil {
		return 0, failed("open", p, unwrapPath(err))
	}
	source, _, err := openRegular(target)
	if err != nil {
		return 0, err
	}
	defer closeQuietly(source)
	count, err := substitute(io.Discard, source, []byte(item.Old), nil)
	if err != nil || count == 0 {
		return 0, failed("read", target, unwrapPath(err))
	}
	if _, err := source.Seek(0, io.SeekStart); err != nil {
		return 0, failed("read", target, unwrapPath(err))
	}
	batch := newBatch(c.service)
	defer batch.abandon()
	file, err := batch.stage(target)
	if err != nil {
		return 0, err
	}
	count, err = substitute(file, source, []byte(item.Old), []byte(item.New))
	if err == nil {
		err = file.apply(0, ownership{-1, -1})
	}
	if err != nil {
		return 0, failed("write", target, unwrapPath(err))
	}
	batch.seal(file)
	return count, batch.commit()
}

// substitute copies in to out with every occurrence of old, from left to right, replaced. It needs the memory of two
// occurrences, whatever the size of the file.
func substitute(out io.Writer, in io.Reader, old, replacement []byte) (count int, err error) {
	buffer := make([]byte, max(replaceBuffer, 2*len(old)))
	held := 0
	for {
		n, readErr := io.ReadFull(in, buffer[held:])
		ended := errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF)
		if readErr != nil && !ended {
			return count, readErr
		}
		window := buffer[:held+n]
		for {
			i := bytes.Index(window, old)
			if i < 0 {
				break
			}
			if err := writeAll(out, window[:i], replacement); err != nil {
				return count, err
			}
			window = window[i+len(old):]
			count++
		}
		// The end of the window may be the beginning of an occurrence.
		keep := min(len(window), len(old)-1)
		if ended {
			keep = 0
		}
		if err := writeAll(out, window[:len(window)-keep]); err != nil || ended {
			return count, err
		}
		held = copy(buffer, window[len(window)-keep:])
	}
}

func writeAll(out io.Writer, pieces ...[]byte) error {
	for _, piece := range pieces {
		if _, err := out.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

func isPathError(err error) bool {
	var wrapped *fs.PathError
	return errors.As(err, &wrapped)
}
