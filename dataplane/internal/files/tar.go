// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// pack streams a directory as a tar archive with names relative to it, or a single file under its base name. The
// archive is chunked and ends regularly only when it is complete.
func (c *call) pack() error {
	root, err := c.path()
	if err != nil {
		return err
	}
	st, err := statAt(unix.AT_FDCWD, root, 0)
	if err != nil {
		return failed("open", root, err)
	}
	p := &packer{call: c, root: root, links: map[inode]string{}}
	p.out = bufio.NewWriterSize(p, 256<<10)
	p.archive = tar.NewWriter(p.out)
	if st.isDir() {
		err = p.packTree()
	} else {
		err = p.packFile()
	}
	if err == nil {
		err = errors.Join(p.archive.Close(), p.out.Flush())
	}
	return failed("pack", root, err)
}

// inode identifies a file with several names.
type inode struct{ device, number uint64 }

type packer struct {
	call    *call
	root    string
	out     *bufio.Writer
	archive *tar.Writer
	links   map[inode]string
}

// Write implements io.Writer below the buffer: the first flush sends the status line.
func (p *packer) Write(data []byte) (int, error) {
	if !p.call.committed {
		p.call.committed = true
		p.call.writer.Header().Set("Content-Type", "application/x-tar")
		p.call.writer.WriteHeader(http.StatusOK)
	}
	return p.call.writer.Write(data)
}

func (p *packer) packTree() error {
	fd, err := openAt(unix.AT_FDCWD, p.root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	unreadable := func(v visit, err error) error {
		if errors.Is(err, errVirtual) {
			return nil
		}
		return failed("open", join(p.root, v.relative), err)
	}
	return walk(p.call.request.Context(), fd, visitor{enter: p.enter, afterOpen: refuseVirtual, unreadable: unreadable})
}

func (p *packer) packFile() error {
	dir, name, err := parentOf(p.root)
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	file, st, err := openRegular(p.root)
	if err != nil {
		return err
	}
	defer closeQuietly(file)
	return p.regular(name, st, file)
}

func (p *packer) enter(v visit) (bool, error) {
	header := headerOf(v.relative, v.status)
	switch v.status.kind() {
	case unix.S_IFDIR:
		header.Typeflag, header.Name = tar.TypeDir, v.relative+"/"
		return true, p.archive.WriteHeader(header)
	case unix.S_IFLNK:
		header.Typeflag, header.Linkname = tar.TypeSymlink, readLinkAt(v.dir, v.name)
		return false, p.archive.WriteHeader(header)
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
		return false, p.archive.WriteHeader(header)
	case unix.S_IFREG:
		return false, p.enterRegular(v)
	}
	return false, nil // sockets and devices mean nothing elsewhere
}

func (p *packer) enterRegular(v visit) error {
	if first, ok := p.linked(v); ok {
		header := headerOf(v.relative, v.status)
		header.Typeflag, header.Linkname = tar.TypeLink, first
		return p.archive.WriteHeader(header)
	}
	fd, err := openAt(v.dir, v.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if is(err, unix.ENOENT, unix.ELOOP) {
		return nil // gone, or no longer what it was a moment ago
	}
	if err != nil {
		return failed("open", join(p.root, v.relative), err)
	}
	file := os.NewFile(uintptr(fd), v.name)
	defer closeQuietly(file)
	st, err := statFD(fd)
	if err != nil || !st.isRegular() {
		return err
	}
	return p.regular(v.relative, st, file)
}

// linked finds the name under which another link to the same file was packed.
func (p *packer) linked(v visit) (string, bool) {
	if v.status.links < 2 {
		return "", false
	}
	key := inode{v.status.device, v.status.inode}
	first, ok := p.links[key]
	if !ok {
		p.links[key] = v.relative
	}
	return first, ok
}

// regular writes exactly the size that the header promises; a file that shrank meanwhile breaks the archive off.
func (p *packer) regular(name string, st *status, file *os.File) error {
	header := headerOf(name, st)
	header.Typeflag, header.Size = tar.TypeReg, st.size
	if err := p.archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.CopyN(p.archive, file, st.size); err != nil {
		return fmt.Errorf("%s changed while it was packed: %w", EscapeName(path.Join(p.root, name)), err)
	}
	return nil
}

func headerOf(name string, st *status) *tar.Header {
	return &tar.Header{
		Name: name, Mode: int64(st.mode & 0o7777), Uid: int(st.uid), Gid: int(st.gid),
		ModTime: st.modified.Truncate(time.Microsecond), Format: tar.FormatPAX,
	}
}
