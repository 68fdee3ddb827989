// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
)

// unpack extracts a tar archive into a directory, which is made when missing. Every entry stays below it: absolute
// names, names with "..", and ways through links are refused. Ownership is the identity's own unless same_owner=true.
func (c *call) unpack() error {
	root, err := c.path()
	if err != nil {
		return err
	}
	u := &unpacker{call: c, root: root}
	u.sameOwner, err = boolOf(c.request.URL.Query().Get("same_owner"))
	if err != nil {
		return err
	}
	if err := u.open(); err != nil {
		return err
	}
	defer u.close()
	if err := u.extract(); err != nil {
		c.drain()
		return err
	}
	return c.answer(map[string]int{"entries": u.entries})
}

func boolOf(text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%q is neither true nor false", text)
	}
	return value, nil
}

type unpacker struct {
	call      *call
	root      string
	rootFD    int
	below     *beneath
	sameOwner bool
	buffer    []byte
	later     []*tar.Header // directories whose attributes are set at the end
	entries   int
}

func (u *unpacker) open() error {
	if err := makeDirectories(u.root); err != nil {
		return err
	}
	fd, err := openAt(unix.AT_FDCWD, u.root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if is(err, unix.ENOTDIR) {
		return conflict(u.root, "is not a directory")
	}
	if err != nil {
		return failed("open", u.root, err)
	}
	if err := u.call.service.journal.beginTree(u.root); err != nil {
		closeFD(fd)
		return err
	}
	u.rootFD, u.below = fd, newBeneath(fd)
	return nil
}

func (u *unpacker) close() {
	u.below.close()
	closeFD(u.rootFD)
	u.call.service.journal.end()
}

func (u *unpacker) extract() error {
	source := &archiveSource{reader: bufio.NewReaderSize(u.call.request.Body, 256<<10)}
	archive := tar.NewReader(source)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) && source.exhausted {
			return brokenArchive(io.ErrUnexpectedEOF)
		}
		if errors.Is(err, io.EOF) {
			return u.settle()
		}
		if err != nil {
			return brokenArchive(err)
		}
		if err := u.entry(header, archive); err != nil {
			return failed("unpack", path.Join(u.root, header.Name), err)
		}
		u.entries++
	}
}

// archiveSource notices when the data ends before the end mark does: the reader of archives takes both for an end, but
// without the mark it may be the end of a program that was killed while packing.
type archiveSource struct {
	reader    io.Reader
	exhausted bool
}

// Read implements io.Reader.
func (a *archiveSource) Read(p []byte) (int, error) {
	n, err := a.reader.Read(p)
	a.exhausted = a.exhausted || errors.Is(err, io.EOF)
	return n, err
}

func brokenArchive(err error) error {
	return fail(http.StatusBadRequest, api.CodeInvalidContent, "the tar archive is broken or incomplete: %v", err)
}

func (u *unpacker) entry(header *tar.Header, data io.Reader) error {
	name, err := localName(header.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	header.Name = name
	if header.Typeflag == tar.TypeDir {
		u.later = append(u.later, header)
		_, err := u.below.dir(name, true)
		return inTheWay(err)
	}
	dir, err := u.below.dir(path.Dir(name), true)
	if err != nil {
		return inTheWay(err)
	}
	return u.place(dir, header, data)
}

// inTheWay explains what refusing to walk through links looks like to the kernel.
func inTheWay(err error) error {
	if is(err, unix.ELOOP, unix.ENOTDIR) {
		return fail(http.StatusConflict, CodeConflict, "a link or file stands where the archive has a directory")
	}
	return err
}

// place makes the entry under a temporary name and renames it over what is there.
func (u *unpacker) place(dir int, header *tar.Header, data io.Reader) error {
	temp := u.call.service.journal.newName()
	err := u.make(dir, temp, header, data)
	if err == nil {
		err = unix.Renameat(dir, temp, dir, path.Base(header.Name))
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // it may not have come into being
	}
	if is(err, unix.EISDIR) {
		return fail(http.StatusConflict, CodeConflict, "a directory stands where the archive has a file")
	}
	return err
}

func (u *unpacker) make(dir int, temp string, header *tar.Header, data io.Reader) error {
	switch header.Typeflag {
	case tar.TypeReg:
		return u.makeRegular(dir, temp, header, data)
	case tar.TypeSymlink:
		return unix.Symlinkat(header.Linkname, dir, temp)
	case tar.TypeLink:
		return u.makeLink(dir, temp, header)
	case tar.TypeFifo:
		return unix.Mknodat(dir, temp, unix.S_IFIFO|uint32(header.Mode&0o777), 0)
	}
	return fail(http.StatusBadRequest, api.CodeInvalidContent, "entries of type %q are not extracted", header.Typeflag)
}

func (u *unpacker) makeRegular(dir int, temp string, header *tar.Header, data io.Reader) error {
	fd, err := openAt(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), temp)
	if err := u.writeBody(file, data); err != nil {
		closeQuietly(file)
		return err
	}
	return errors.Join(u.attributes(fd, header), file.Close())
}

// writeBody keeps an archive that ends early apart from a disk that is full.
func (u *unpacker) writeBody(file *os.File, data io.Reader) error {
	if u.buffer == nil {
		u.buffer = make([]byte, 256<<10)
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{data}, u.buffer)
	if err != nil && !isPathError(err) {
		return brokenArchive(err)
	}
	return unwrapPath(err)
}

// makeLink links to an earlier entry; the name is checked like any other.
func (u *unpacker) makeLink(to int, temp string, header *tar.Header) error {
	name, err := localName(header.Linkname)
	if err != nil {
		return err
	}
	below := newBeneath(u.rootFD)
	defer below.close()
	dir, err := below.dir(path.Dir(name), false)
	if err != nil {
		return inTheWay(err)
	}
	return unix.Linkat(dir, path.Base(name), to, temp, 0)
}

func (u *unpacker) attributes(fd int, header *tar.Header) error {
	if u.sameOwner {
		if err := unix.Fchown(fd, header.Uid, header.Gid); err != nil {
			return err
		}
	}
	bits := uint32(header.Mode & 0o7777)
	if !u.sameOwner {
		bits &= 0o1777 // set-id bits belong to the owner that is not kept
	}
	if err := unix.Fchmod(fd, bits); err != nil {
		return err
	}
	return setModified(fd, header.ModTime.UnixNano())
}

// settle gives directories their attributes, the last entries first. Unlike an upload it does not wait for the disk: a
// flush of thousands of small files, or of the whole file system, would hold up everybody else on the machine.
func (u *unpacker) settle() error {
	for i := len(u.later) - 1; i >= 0; i-- {
		header := u.later[i]
		fd, err := u.below.dir(header.Name, false)
		if err == nil {
			err = u.attributes(fd, header)
		}
		if err != nil {
			return failed("unpack", path.Join(u.root, header.Name), inTheWay(err))
		}
	}
	return nil
}
