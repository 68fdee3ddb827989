// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"errors"
	"io/fs"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// FileInfo describes one entry on the wire. Links are described, not followed.
type FileInfo struct {
	Path       string `json:"path"`
	Type       string `json:"type"`
	Size       int64  `json:"size"`
	ModifiedAt string `json:"modified_at"`
	CreatedAt  string `json:"created_at"`
	Owner      string `json:"owner"`
	Group      string `json:"group"`
	Mode       Mode   `json:"mode"`
	// Target is where a symbolic link points; our own addition.
	Target string `json:"target,omitempty"`
}

// status is what the kernel says about one entry.
type status struct {
	mode      uint32
	size      int64
	uid, gid  uint32
	device    uint64
	inode     uint64
	links     uint64
	modified  time.Time
	created   time.Time
	mountRoot bool
}

func (s *status) kind() uint32    { return s.mode & unix.S_IFMT }
func (s *status) isDir() bool     { return s.kind() == unix.S_IFDIR }
func (s *status) isLink() bool    { return s.kind() == unix.S_IFLNK }
func (s *status) isRegular() bool { return s.kind() == unix.S_IFREG }

func (s *status) same(other *status) bool {
	return s.device == other.device && s.inode == other.inode
}

func (s *status) typeName() string {
	switch s.kind() {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	}
	return "other"
}

// statAt describes name in dir; flags may be AT_SYMLINK_NOFOLLOW or AT_EMPTY_PATH.
func statAt(dir int, name string, flags int) (*status, error) {
	var raw unix.Statx_t
	const want = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	err := retry(func() error { return unix.Statx(dir, name, flags, want, &raw) })
	if is(err, unix.ENOSYS) {
		return oldStatAt(dir, name, flags)
	}
	if err != nil {
		return nil, err
	}
	modified := time.Unix(raw.Mtime.Sec, int64(raw.Mtime.Nsec))
	created := earlier(modified, time.Unix(raw.Ctime.Sec, int64(raw.Ctime.Nsec)))
	// gVisor claims to know the birth time and says 1970.
	if raw.Mask&unix.STATX_BTIME != 0 && raw.Btime.Sec != 0 {
		created = time.Unix(raw.Btime.Sec, int64(raw.Btime.Nsec))
	}
	return &status{
		mode: uint32(raw.Mode), size: int64(raw.Size), uid: raw.Uid, gid: raw.Gid,
		device: unix.Mkdev(raw.Dev_major, raw.Dev_minor), inode: raw.Ino, links: uint64(raw.Nlink),
		modified: modified, created: created,
		mountRoot: raw.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}, nil
}

// oldStatAt serves kernels and sandboxes without statx: no birth time there, and no mark of mount points.
func oldStatAt(dir int, name string, flags int) (*status, error) {
	var raw unix.Stat_t
	if err := retry(func() error { return unix.Fstatat(dir, name, &raw, flags) }); err != nil {
		return nil, err
	}
	modified := time.Unix(raw.Mtim.Unix())
	return &status{
		mode: raw.Mode, size: raw.Size, uid: raw.Uid, gid: raw.Gid,
		device: uint64(raw.Dev), inode: raw.Ino, links: uint64(raw.Nlink),
		modified: modified, created: earlier(modified, time.Unix(raw.Ctim.Unix())),
	}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func lstat(p string) (*status, error) {
	st, err := statAt(unix.AT_FDCWD, p, unix.AT_SYMLINK_NOFOLLOW)
	return st, failed("lstat", p, err)
}

func statFD(fd int) (*status, error) { return statAt(fd, "", unix.AT_EMPTY_PATH) }

const wireTime = "2006-01-02T15:04:05.000000Z"

// describe builds the wire form; dir and name are only used to read the target of a link.
func describe(p string, st *status, dir int, name string, known *accounts) FileInfo {
	info := FileInfo{
		Path: EscapeName(p), Type: st.typeName(), Size: st.size,
		ModifiedAt: st.modified.UTC().Format(wireTime), CreatedAt: st.created.UTC().Format(wireTime),
		Owner: EscapeName(known.owner(st.uid)), Group: EscapeName(known.group(st.gid)), Mode: ModeOf(st.mode),
	}
	if st.isDir() {
		info.Size = 0
	}
	if st.isLink() {
		info.Target = EscapeName(readLinkAt(dir, name))
	}
	return info
}

// readLinkAt returns "" for a link that vanished meanwhile.
func readLinkAt(dir int, name string) string {
	for size := 256; size <= 1<<20; size *= 2 {
		target := make([]byte, size)
		n, err := unix.Readlinkat(dir, name, target)
		if err != nil {
			return ""
		}
		if n < size {
			return string(target[:n])
		}
	}
	return ""
}

func (c *call) info() error {
	known := c.service.accounts.get()
	answer := map[string]FileInfo{}
	given, err := c.paths()
	if err != nil {
		return err
	}
	for _, requested := range given {
		p, err := c.resolve(requested)
		if err != nil {
			return err
		}
		st, err := lstat(p)
		if err != nil {
			return err
		}
		answer[spelled(requested)] = describe(p, st, unix.AT_FDCWD, p, known)
	}
	return c.answer(answer)
}

// unwrapPath takes the system error out of what package os returns, so that it is wrapped once.
func unwrapPath(err error) error {
	var wrapped *fs.PathError
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// join appends a relative path of a walk to its root.
func join(root, relative string) string {
	if relative == "" {
		return root
	}
	return path.Join(root, relative)
}
