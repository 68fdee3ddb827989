// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// Codes beyond the shared ones, for conditions a caller may want to act on.
const (
	CodeConflict = "FILE_CONFLICT"     // 409: something else is at that path
	CodeDenied   = "PERMISSION_DENIED" // 403: the identity may not do that
	CodeNoSpace  = "NO_SPACE"          // 507: the file system or the quota is full
)

// problem is an error that already knows how it looks on the wire.
type problem struct {
	status  int
	code    string
	message string
}

func (p *problem) Error() string { return p.message }

func fail(status int, code, format string, args ...any) error {
	return &problem{status, code, fmt.Sprintf(format, args...)}
}

// Refuse is the error of a request that a view cannot serve, ready for the wire.
func Refuse(status int, code, message string) error { return &problem{status, code, message} }

func badRequest(format string, args ...any) error {
	return fail(http.StatusBadRequest, api.CodeInvalidRequest, format, args...)
}

func missingQuery(name string) error {
	return fail(http.StatusBadRequest, api.CodeMissingQuery, "the query parameter %q is missing", name)
}

func conflict(path, what string) error {
	return fail(http.StatusConflict, CodeConflict, "%s: %s", EscapeName(path), what)
}

// failed names the operation and the path of a system error, once.
func failed(op, path string, err error) error {
	var known *problem
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &fs.PathError{Op: op, Path: EscapeName(path), Err: err}
}

// toProblem chooses status and code for any error of this package.
func toProblem(err error) *problem {
	var known *problem
	if errors.As(err, &known) {
		return known
	}
	var wrapped *fs.PathError
	message := err.Error()
	if !errors.As(err, &wrapped) {
		message = "file operation failed: " + message
	}
	status, code := classify(err)
	return &problem{status, code, message}
}

func classify(err error) (status int, code string) {
	switch {
	case errors.Is(err, context.Canceled):
		return 499, api.CodeRuntime
	case is(err, unix.ENOENT, unix.ENOTDIR):
		return http.StatusNotFound, api.CodeFileNotFound
	case is(err, unix.EACCES, unix.EPERM, unix.EROFS):
		return http.StatusForbidden, CodeDenied
	case is(err, unix.ENOSPC, unix.EDQUOT):
		return http.StatusInsufficientStorage, CodeNoSpace
	case is(err, unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY):
		return http.StatusConflict, CodeConflict
	case is(err, unix.ENAMETOOLONG, unix.ELOOP, unix.EISDIR, unix.EINVAL):
		return http.StatusBadRequest, api.CodeInvalidFile
	}
	return http.StatusInternalServerError, api.CodeRuntime
}

func is(err error, numbers ...unix.Errno) bool {
	for _, number := range numbers {
		if errors.Is(err, number) {
			return true
		}
	}
	return false
}

func isMissing(err error) bool { return is(err, unix.ENOENT, unix.ENOTDIR) }

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func closeQuietly(file *os.File) {
	// Only for files opened for reading or already given up: nothing can be lost by a failing close.
	_ = file.Close()
}
