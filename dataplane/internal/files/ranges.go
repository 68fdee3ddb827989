// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"strconv"
	"strings"
)

var errUnsatisfiable = errors.New("range lies outside the file")

// byteRange is a part of a file: Length bytes from Start.
type byteRange struct{ Start, Length int64 }

// parseRange reads the first range of a Range header. ok is false when there is none to honour: no header, another
// unit, or a form that is no range at all, which HTTP tells servers to ignore.
func parseRange(header string, size int64) (part byteRange, ok bool, err error) {
	list, found := strings.CutPrefix(strings.TrimSpace(header), "bytes=")
	if !found {
		return byteRange{}, false, nil
	}
	first, _, _ := strings.Cut(list, ",")
	from, to, found := strings.Cut(strings.TrimSpace(first), "-")
	if !found {
		return byteRange{}, false, nil
	}
	from, to = strings.TrimSpace(from), strings.TrimSpace(to)
	if from == "" {
		return suffixRange(to, size)
	}
	start, okFrom := parseDigits(from)
	end, okTo := size-1, true
	if to != "" {
		end, okTo = parseDigits(to)
	}
	switch {
	case !okFrom || !okTo || (to != "" && end < start):
		return byteRange{}, false, nil
	case start >= size:
		return byteRange{}, false, errUnsatisfiable
	}
	return byteRange{start, min(end, size-1) - start + 1}, true, nil
}

func suffixRange(count string, size int64) (byteRange, bool, error) {
	n, ok := parseDigits(count)
	switch {
	case !ok:
		return byteRange{}, false, nil
	case n == 0 || size == 0:
		return byteRange{}, false, errUnsatisfiable
	}
	n = min(n, size)
	return byteRange{size - n, n}, true, nil
}

// parseDigits reads a number without sign; one too large for any file counts as the largest.
func parseDigits(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}
