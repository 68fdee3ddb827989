// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mount is mount(2) with an error that says what was to be mounted where.
func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		what := kind
		if what == "" {
			what = source
		}
		return fmt.Errorf("mount %s on %s: %w", what, target, err)
	}
	return nil
}

// privateMounts gives the calling thread namespaces of its own, with mounts that nobody else sees.
func privateMounts(namespaces int) error {
	if err := unix.Unshare(namespaces | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	return nil
}

// bind shows source, with everything mounted below it, at target.
func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	return nil
}

// makeReadOnly forbids writing below a mount point, mounts below it included.
func makeReadOnly(target string) error {
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, attributes); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

// tmpfs mounts an empty file system in memory; its bytes count against the sandbox's memory limit.
func tmpfs(target, mode string, flags uintptr) error {
	return mount("tmpfs", target, "tmpfs", flags|unix.MS_NOSUID|unix.MS_NODEV, "mode="+mode)
}

// isReadOnly reports whether the mount that a path is on forbids writing.
func isReadOnly(path string) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return stat.Flags&unix.ST_RDONLY != 0, nil
}
