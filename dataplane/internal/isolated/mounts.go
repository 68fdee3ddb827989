// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/plain"
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

// tmpfs mounts an empty file system in memory. Its bytes count against the sandbox's memory limit, and
// may take up half of it.
func tmpfs(target, mode string, flags uintptr) error {
	options := "mode=" + mode
	if limit := memoryLimit(); limit > 0 {
		options += ",size=" + strconv.FormatUint(limit/2, 10)
	}
	return mount("tmpfs", target, "tmpfs", flags|unix.MS_NOSUID|unix.MS_NODEV, options)
}

// limitFiles hold the sandbox's memory limit: the unified hierarchy first, then the older one.
var limitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// memoryLimit is 0 where there is none.
func memoryLimit() uint64 {
	for _, name := range limitFiles {
		content, err := plain.Read(name, 4<<10)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 63)
		if err == nil {
			return limit
		}
	}
	return 0
}

// isReadOnly reports whether the mount that a path is on forbids writing.
func isReadOnly(path string) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return stat.Flags&unix.ST_RDONLY != 0, nil
}
