// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/version"
)

// isolator names the mechanism: the kernel's namespaces, made by the daemon itself.
const isolator = "namespaces"

// support is what this sandbox can do, found out by doing it once.
type support struct {
	// reason says why there are no isolated sessions; empty when there are.
	reason string
	// overlayReason says why no session can write over files without changing them.
	overlayReason string
}

// support finds out on the first call.
func (s *Service) support() support { return s.probed() }

func (s *Service) probe() support {
	if s.home == nil {
		return support{reason: "this sandbox was created without the extension bootstrap.execd.isolation=enable"}
	}
	var found support
	err := s.home.visit(func() error {
		folder, err := os.MkdirTemp(s.home.path, "probe-")
		if err == nil {
			found = try(folder)
		}
		return err
	})
	if err == nil {
		err = s.home.visit(func() error { return removeContent(s.home.path) })
	}
	if err != nil {
		return support{reason: "the sandbox has no place for what sessions write: " + err.Error()}
	}
	return found
}

// removeContent empties a directory.
func removeContent(folder string) error {
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(folder, entry.Name())))
	}
	return err
}

// try makes the namespaces and mounts of a session, for the calling thread.
func try(folder string) support {
	for _, name := range []string{"origin", "lower", "upper", "work", "target"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			return support{reason: err.Error()}
		}
	}
	err := privateMounts(unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID | unix.CLONE_NEWNET)
	origin := filepath.Join(folder, "origin")
	if err == nil {
		err = stage(origin)
	}
	if err != nil {
		return support{reason: "the kernel forbids it: " + err.Error()}
	}
	inside := filepath.Join(origin, folder)
	options := fmt.Sprintf("userxattr,lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", inside)
	if err := mount("overlay", filepath.Join(folder, "target"), "overlay", 0, options); err != nil {
		return support{overlayReason: "the kernel forbids it: " + err.Error()}
	}
	return support{}
}

// layerState is how one kind of hardening stands.
type layerState struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

type hardening struct {
	InitMode     string     `json:"init_mode"`
	SignalShield bool       `json:"signal_shield"`
	CapDrop      layerState `json:"cap_drop"`
	Seccomp      layerState `json:"seccomp"`
	Landlock     layerState `json:"landlock"`
	EBPF         layerState `json:"ebpf"`
}

type capabilitiesBody struct {
	Available        bool      `json:"available"`
	Isolator         string    `json:"isolator,omitempty"`
	Version          string    `json:"version,omitempty"`
	Message          string    `json:"message,omitempty"`
	SetprivAvailable bool      `json:"setpriv_available"`
	UsernsAvailable  bool      `json:"userns_available"`
	CommitSupported  bool      `json:"commit_supported"`
	DiffSupported    bool      `json:"diff_supported"`
	Hardening        hardening `json:"hardening"`
}

func (s *Service) capabilities(w http.ResponseWriter, _ *http.Request) {
	found := s.support()
	body := capabilitiesBody{Message: found.reason, Hardening: hardeningNow()}
	if found.reason == "" {
		body.Available, body.Isolator, body.Version = true, isolator, version.Version
		body.SetprivAvailable = true
		body.CommitSupported = found.overlayReason == ""
		body.DiffSupported = body.CommitSupported
		body.Message = found.overlayReason
	}
	api.WriteJSON(w, http.StatusOK, body)
}

var processStatus = sync.OnceValue(func() map[string]string {
	fields := map[string]string{}
	content, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return fields
	}
	for _, line := range strings.Split(string(content), "\n") {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
})

// hardeningNow reports what holds the sandbox's user code, isolated or not.
func hardeningNow() hardening {
	unused := layerState{State: "disabled", Message: "not used by this runtime"}
	found := hardening{InitMode: "subreaper", Landlock: unused, EBPF: unused}
	if os.Getpid() == 1 {
		found.InitMode, found.SignalShield = "pid1", true
	}
	found.Seccomp = layerState{State: "disabled", Message: "no system call filter is installed"}
	if processStatus()["Seccomp"] == "2" {
		found.Seccomp = layerState{State: "active"}
	}
	found.CapDrop = layerState{State: "disabled", Message: "user code has the capabilities of the machine's root"}
	if bounding := processStatus()["CapBnd"]; bounding != "" && !hasAll(bounding) {
		found.CapDrop = layerState{State: "active"}
	}
	return found
}

// hasAll reports whether a bounding set, in hexadecimal, holds everything that a kernel knows.
func hasAll(bounding string) bool {
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	var highest uint
	if _, scanned := fmt.Sscan(string(last), &highest); err != nil || scanned != nil {
		return true
	}
	var set uint64
	if _, err := fmt.Sscanf(bounding, "%x", &set); err != nil {
		return true
	}
	return set == 1<<(highest+1)-1
}
