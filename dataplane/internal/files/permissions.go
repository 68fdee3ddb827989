// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/environment"
)

// permission is mode and ownership in a request. Null, "" and 0 mean "leave it".
type permission struct {
	Mode  Mode    `json:"mode"`
	Owner *string `json:"owner"`
	Group *string `json:"group"`
}

// ownership is a permission with its names looked up; -1 leaves an id alone.
type ownership struct{ uid, gid int }

func (p permission) ownership(known *accounts) (ownership, error) {
	result := ownership{-1, -1}
	if p.Owner != nil && *p.Owner != "" {
		uid, ok := known.uidOf(UnescapeName(*p.Owner))
		if !ok {
			return result, badRequest("there is no user %q", *p.Owner)
		}
		if !environment.UserIsMapped(uid) {
			return result, badRequest("owner: user %q (uid %d) does not exist in this sandbox's user namespace", *p.Owner, uid)
		}
		result.uid = int(uid)
	}
	if p.Group != nil && *p.Group != "" {
		gid, ok := known.gidOf(UnescapeName(*p.Group))
		if !ok {
			return result, badRequest("there is no group %q", *p.Group)
		}
		if !environment.GroupIsMapped(gid) {
			return result, badRequest("group: group %q (gid %d) does not exist in this sandbox's user namespace", *p.Group, gid)
		}
		result.gid = int(gid)
	}
	return result, nil
}

func (o ownership) isEmpty() bool { return o.uid < 0 && o.gid < 0 }

// applyTo changes an open file: ownership first, because a change of owner clears the set-id bits.
func applyTo(fd int, mode Mode, owner ownership) error {
	if !owner.isEmpty() {
		if err := unix.Fchown(fd, owner.uid, owner.gid); err != nil {
			return err
		}
	}
	if mode == 0 {
		return nil
	}
	return unix.Fchmod(fd, mode.Bits())
}

// setPermissions follows links, as chmod and chown do with a link they are given by name.
func (c *call) setPermissions() error {
	var items map[string]permission
	if !c.readJSON(&items) {
		return nil
	}
	known := c.service.accounts.get()
	for _, text := range slices.Sorted(maps.Keys(items)) {
		p, err := c.resolve(text)
		if err != nil {
			return err
		}
		owner, err := items[text].ownership(known)
		if err != nil {
			return err
		}
		if err := applyToPath(p, items[text].Mode, owner); err != nil {
			return failed("change permissions of", p, err)
		}
	}
	return c.done()
}

func applyToPath(p string, mode Mode, owner ownership) error {
	if err := retry(func() error { return unix.Access(p, unix.F_OK) }); err != nil {
		return err
	}
	if !owner.isEmpty() {
		if err := unix.Chown(p, owner.uid, owner.gid); err != nil {
			return err
		}
	}
	if mode == 0 {
		return nil
	}
	return unix.Chmod(p, mode.Bits())
}
