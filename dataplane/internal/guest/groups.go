// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Where the control groups are, and the part of them that is shown there instead in the end.
const (
	groupsRoot  = "/sys/fs/cgroup"
	sandboxPart = groupsRoot + "/sandbox"
)

// memoryReserve is what the kernel and the daemon keep when the sandbox runs out of memory.
const memoryReserve = 24 << 20

// groups limit what the sandbox starts. The daemon stays outside.
type groups struct {
	run *os.File
}

// makeGroups prepares the groups and shows the sandbox its own at the usual place.
func makeGroups() (groups, error) {
	if err := mountAll(mount{"cgroup2", groupsRoot, "cgroup2", hardened, ""}); err != nil {
		return groups{}, err
	}
	controllers := []byte("+memory +pids +cpu")
	if err := os.WriteFile(groupsRoot+"/cgroup.subtree_control", controllers, 0); err != nil {
		return groups{}, fmt.Errorf("hand out controllers: %w", err)
	}
	if err := os.MkdirAll(sandboxPart, 0o755); err != nil {
		return groups{}, err
	}
	if err := os.WriteFile(sandboxPart+"/cgroup.subtree_control", []byte("+pids"), 0); err != nil {
		return groups{}, fmt.Errorf("hand out controllers: %w", err)
	}
	if err := os.MkdirAll(sandboxPart+"/run", 0o755); err != nil {
		return groups{}, err
	}
	if err := limitMemory(); err != nil {
		return groups{}, err
	}
	run, err := os.Open(sandboxPart + "/run")
	if err != nil {
		return groups{}, err
	}
	return groups{run}, mountAll(mount{sandboxPart, groupsRoot, "", unix.MS_BIND, ""})
}

func limitMemory() error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	total := int64(info.Totalram) * int64(info.Unit)
	most := strconv.FormatInt(max(total-memoryReserve, total/2), 10)
	if err := os.WriteFile(sandboxPart+"/memory.max", []byte(most), 0); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}

// limit bounds the number of processes.
func (g groups) limit(wanted limits) error {
	if wanted.Pids <= 0 {
		return nil
	}
	most := strconv.FormatInt(wanted.Pids, 10)
	if err := os.WriteFile(groupsRoot+"/run/pids.max", []byte(most), 0); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}
