// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"path/filepath"
	"slices"

	"casulo.dev/dataplane/internal/api"
)

// maxReplaceSize bounds the memory of an edit; larger files are for tools that stream.
const maxReplaceSize = 128 << 20

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

func (c *call) replaceIn(p string, item replacement) (int, error) {
	target, err := filepath.EvalSymlinks(p)
	if err != nil {
		return 0, failed("open", p, unwrapPath(err))
	}
	content, err := readWhole(target)
	if err != nil {
		return 0, err
	}
	count := bytes.Count(content, []byte(item.Old))
	if count == 0 {
		return 0, nil
	}
	batch := newBatch(c.service)
	defer batch.abandon()
	file, err := batch.stage(target)
	if err != nil {
		return 0, err
	}
	if _, err := file.Write(bytes.ReplaceAll(content, []byte(item.Old), []byte(item.New))); err != nil {
		return 0, failed("write", target, unwrapPath(err))
	}
	if err := file.apply(0, ownership{-1, -1}); err != nil {
		return 0, err
	}
	batch.seal(file)
	return count, batch.commit()
}

func readWhole(p string) ([]byte, error) {
	file, st, err := openRegular(p)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(file)
	if st.size > maxReplaceSize {
		return nil, fail(http.StatusBadRequest, api.CodeInvalidFile, "%s is too large to edit: %d bytes, at most %d",
			EscapeName(p), st.size, maxReplaceSize)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxReplaceSize+1))
	return content, failed("read", p, unwrapPath(err))
}

func isPathError(err error) bool {
	var wrapped *fs.PathError
	return errors.As(err, &wrapped)
}
