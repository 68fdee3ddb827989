// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The disks: the image, which all machines share, and this machine's own.
const (
	imageDisk = "/dev/vda"
	ownDisk   = "/dev/vdb"
)

// diskPatience bounds how long a disk may take to appear after its driver was loaded.
const diskPatience = 10 * time.Second

// recordRoom is the end of the machine's own disk, behind its file system: how the entrypoint ended
// is written there, for a host that looks only when the machine is gone.
const recordRoom = 64 << 10

const hardened = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) make() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("make the mount point %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

func mountAll(mounts ...mount) error {
	for _, one := range mounts {
		if err := one.make(); err != nil {
			return err
		}
	}
	return nil
}

// mountBasics shows devices and the kernel's own files, which loading drivers needs.
func mountBasics() error {
	return mountAll(
		mount{"proc", "/proc", "proc", hardened, ""},
		mount{"sysfs", "/sys", "sysfs", hardened, ""},
		mount{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=755"},
	)
}

// enterRoot makes the image with the own disk over it the root of everything, and leaves the initial
// memory disk empty.
func enterRoot() error {
	if err := errors.Join(awaitDisk(imageDisk), awaitDisk(ownDisk)); err != nil {
		return err
	}
	err := mountAll(
		mount{imageDisk, "/image", "ext4", unix.MS_RDONLY | unix.MS_NOATIME, ""},
		mount{ownDisk, "/own", "ext4", unix.MS_NOATIME, ""},
	)
	if err != nil {
		return err
	}
	for _, folder := range []string{"/own/upper", "/own/work"} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	layers := "lowerdir=/image,upperdir=/own/upper,workdir=/own/work"
	if err := mountAll(mount{"overlay", "/root", "overlay", unix.MS_NOATIME, layers}); err != nil {
		return err
	}
	return switchRoot("/root")
}

func awaitDisk(name string) error {
	for deadline := time.Now().Add(diskPatience); ; time.Sleep(time.Millisecond) {
		_, err := os.Stat(name)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the machine has no disk %s: %w", name, err)
		}
	}
}

func switchRoot(root string) error {
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		if err := os.MkdirAll(root+name, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(name, root+name, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", name, err)
		}
	}
	// This program is running from it and stays in memory as long as it runs.
	if err := os.Remove(initName); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// mountRest adds what programs expect to find.
func mountRest() error {
	err := mountAll(
		mount{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"},
		mount{"shm", "/dev/shm", "tmpfs", hardened, "mode=1777,size=64m"},
		mount{"mqueue", "/dev/mqueue", "mqueue", hardened, ""},
	)
	if err != nil {
		return err
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// openRecord positions a descriptor where the entrypoint's end is to be written.
func openRecord() (*os.File, error) {
	record, err := os.OpenFile(ownDisk, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		return nil, err
	}
	if _, err := record.Seek(-recordRoom, 2); err != nil {
		return nil, errors.Join(err, record.Close())
	}
	return record, nil
}
