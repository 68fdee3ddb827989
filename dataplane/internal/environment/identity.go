// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package environment

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"casulo.dev/dataplane/internal/plain"
)

// accountsLimit is how large the files of accounts may be.
const accountsLimit = 8 << 20

// maxID is the highest user or group number; the one above means "unchanged" to the kernel.
const maxID = 1<<32 - 2

// Identity is a user that a process runs as. The zero value is the daemon itself.
type Identity struct {
	// Credential is nil when nothing has to change.
	Credential *syscall.Credential
	variables  map[string]string
	// file is what the file with additional variables said when composed is true.
	file     string
	composed bool
}

// Identify finds the credentials for a request's uid and gid. Both nil means the sandbox's user. A
// uid alone takes the account's groups; one without an account gets a group of the same number. The
// file with additional variables is read here too, so that the caller hears when that is impossible.
func (e *Environment) Identify(uid, gid *int64) (Identity, error) {
	identity, err := e.find(uid, gid)
	if err != nil {
		return Identity{}, err
	}
	identity.file, err = e.readFile()
	identity.composed = true
	return identity, err
}

func (e *Environment) find(uid, gid *int64) (Identity, error) {
	if uid == nil && gid != nil {
		return Identity{}, errors.New("gid needs uid")
	}
	if uid == nil {
		return e.ownIdentity(), CheckMapped(e.user.UID, e.user.GID)
	}
	if err := checkIDs(uid, gid); err != nil {
		return Identity{}, err
	}
	return identify(uint32(*uid), gid)
}

func checkIDs(ids ...*int64) error {
	for _, id := range ids {
		if id != nil && (*id < 0 || *id > maxID) {
			return fmt.Errorf("%d is no user or group: it has to be between 0 and %d", *id, int64(maxID))
		}
	}
	return nil
}

func (e *Environment) ownIdentity() Identity {
	if e.user.UID == uint32(os.Getuid()) && e.user.GID == uint32(os.Getgid()) {
		return Identity{}
	}
	if e.user.Groups != nil {
		return Identity{Credential: credential(e.user.UID, e.user.GID, e.user.Groups)}
	}
	account, _, err := findAccount("/etc/passwd", e.user.UID)
	if err != nil {
		account = Account{}
	}
	groups := supplementary("/etc/group", account.Name)
	return Identity{Credential: credential(e.user.UID, e.user.GID, groups)}
}

func identify(uid uint32, gid *int64) (Identity, error) {
	account, found, err := findAccount("/etc/passwd", uid)
	if err != nil {
		return Identity{}, err
	}
	if !found {
		account = Account{UID: uid, GID: uid, Home: "/"}
	}
	groups := supplementary("/etc/group", account.Name)
	if gid != nil {
		account.GID = uint32(*gid)
		groups = nil
	}
	if err := CheckMapped(uid, account.GID); err != nil {
		return Identity{}, err
	}
	return Identity{Credential: credential(uid, account.GID, groups), variables: account.variables()}, nil
}

// credential leaves the supplementary groups alone where the user namespace forbids to set them.
func credential(uid, gid uint32, groups []uint32) *syscall.Credential {
	return &syscall.Credential{Uid: uid, Gid: gid, Groups: groups, NoSetGroups: groupsAreFixed()}
}

func groupsAreFixed() bool {
	content, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(content)) == "deny"
}

// Account is a line of the sandbox's passwd file.
type Account struct {
	Name     string
	UID, GID uint32
	Home     string
}

func (a Account) variables() map[string]string {
	variables := map[string]string{"HOME": a.Home}
	if a.Name != "" {
		variables["USER"], variables["LOGNAME"] = a.Name, a.Name
	}
	return variables
}

func findAccount(passwd string, uid uint32) (Account, bool, error) {
	var result Account
	found := false
	err := eachLine(passwd, func(fields []string) bool {
		if len(fields) < 6 || fields[2] != strconv.FormatUint(uint64(uid), 10) {
			return true
		}
		gid, err := strconv.ParseUint(fields[3], 10, 32)
		if err != nil {
			return true
		}
		result = Account{Name: fields[0], UID: uid, GID: uint32(gid), Home: fields[5]}
		found = true
		return false
	})
	return result, found, err
}

// supplementary lists the groups that name the user as a member.
func supplementary(group, user string) []uint32 {
	var gids []uint32
	if user == "" {
		return nil
	}
	err := eachLine(group, func(fields []string) bool {
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), user) {
			return true
		}
		if gid, err := strconv.ParseUint(fields[2], 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
		return true
	})
	if err != nil {
		return nil
	}
	return gids
}

// eachLine calls visit with the colon-separated fields of each line until it returns false. A
// missing file has no lines: small images come without accounts.
func eachLine(name string, visit func(fields []string) bool) error {
	content, err := plain.Read(name, accountsLimit)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		if !visit(strings.Split(strings.TrimSuffix(line, "\n"), ":")) {
			return nil
		}
	}
	return nil
}
