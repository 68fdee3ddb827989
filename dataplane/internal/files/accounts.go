// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bufio"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/plain"
)

// accounts is what /etc/passwd and /etc/group say. A missing or broken file is an empty one: images often have none.
type accounts struct {
	userNames  map[uint32]string
	userIDs    map[string]uint32
	homes      map[uint32]string
	groupNames map[uint32]string
	groupIDs   map[string]uint32
	members    map[string][]uint32 // user name -> groups that list it
}

func (a *accounts) owner(uid uint32) string {
	if name, ok := a.userNames[uid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

func (a *accounts) group(gid uint32) string {
	if name, ok := a.groupNames[gid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(gid), 10)
}

// uidOf finds a user by name, or by number.
func (a *accounts) uidOf(name string) (uint32, bool) { return idOf(a.userIDs, name) }

// gidOf finds a group by name, or by number.
func (a *accounts) gidOf(name string) (uint32, bool) { return idOf(a.groupIDs, name) }

func idOf(known map[string]uint32, name string) (uint32, bool) {
	if id, ok := known[name]; ok {
		return id, true
	}
	id, ok := parseID(name)
	return id, ok
}

// parseID reads an id; the largest 32-bit number means "none" to the kernel and is refused.
func parseID(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}

// supplementary lists the groups that name the account of uid as a member.
func (a *accounts) supplementary(uid uint32) []uint32 {
	return a.members[a.userNames[uid]]
}

func parseAccounts(passwd, group string) *accounts {
	a := &accounts{
		userNames: map[uint32]string{}, userIDs: map[string]uint32{}, homes: map[uint32]string{},
		groupNames: map[uint32]string{}, groupIDs: map[string]uint32{}, members: map[string][]uint32{},
	}
	eachRecord(passwd, 7, func(fields []string, id uint32) {
		remember(a.userNames, a.userIDs, fields[0], id)
		if _, taken := a.homes[id]; !taken {
			a.homes[id] = fields[5]
		}
	})
	eachRecord(group, 4, func(fields []string, id uint32) {
		remember(a.groupNames, a.groupIDs, fields[0], id)
		for _, member := range strings.Split(fields[3], ",") {
			if member != "" && !slices.Contains(a.members[member], id) {
				a.members[member] = append(a.members[member], id)
			}
		}
	})
	return a
}

// remember keeps the first entry of a name and of an id, as the C library does.
func remember(names map[uint32]string, ids map[string]uint32, name string, id uint32) {
	if _, taken := names[id]; !taken {
		names[id] = name
	}
	if _, taken := ids[name]; !taken {
		ids[name] = id
	}
}

func eachRecord(text string, width int, use func(fields []string, id uint32)) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < width || fields[0] == "" || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if id, ok := parseID(fields[2]); ok {
			use(fields, id)
		}
	}
}

// accountCache re-reads the two files only when they changed.
type accountCache struct {
	mu     sync.Mutex
	passwd stamp
	group  stamp
	known  *accounts
}

type stamp struct {
	device, inode uint64
	size          int64
	changed       time.Time
}

func (c *accountCache) get() *accounts {
	passwd, group := stampOf("/etc/passwd"), stampOf("/etc/group")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || passwd != c.passwd || group != c.group {
		c.known = parseAccounts(readText("/etc/passwd"), readText("/etc/group"))
		c.passwd, c.group = passwd, group
	}
	return c.known
}

func stampOf(path string) stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return stamp{}
	}
	return stamp{uint64(st.Dev), st.Ino, st.Size, time.Unix(st.Ctim.Unix())}
}

// accountsLimit is how large the two files may be.
const accountsLimit = 8 << 20

// readText counts what cannot be read, and what is no regular file, as empty.
func readText(path string) string {
	content, err := plain.Read(path, accountsLimit)
	if err != nil {
		return ""
	}
	return string(content)
}
