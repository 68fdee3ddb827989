// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Profiles and modes, as requests name them.
const (
	profileStrict   = "strict"
	profileBalanced = "balanced"
	modeWritable    = "rw"
	modeOverlay     = "overlay"
	modeReadOnly    = "ro"
	uidModeSetpriv  = "setpriv"
	uidModeUserns   = "userns"
	envDeny         = "deny"
	envAllow        = "allow"
)

// allowedRoots are the directories below which a session may be given anything but read access.
var allowedRoots = []string{"/workspace", "/mnt", "/media", "/data"}

const (
	maxID          = 1<<32 - 2
	maxIdleSeconds = 365 * 24 * 3600
)

// workspaceSpec is the older way to name the first overlay.
type workspaceSpec struct {
	Path string `json:"path"`
	Mode string `json:"mode,omitempty"`
}

// overlaySpec is one directory of the sandbox and what the session sees of it.
type overlaySpec struct {
	Path    string `json:"path"`
	Mode    string `json:"mode,omitempty"`
	Persist *bool  `json:"persist,omitempty"`
}

// persists reports whether what the session writes is kept on disk until the session is deleted.
func (o overlaySpec) persists() bool { return o.Persist == nil || *o.Persist }

type bindSpec struct {
	Source   string `json:"source"`
	Dest     string `json:"dest,omitempty"`
	ReadOnly bool   `json:"readonly,omitempty"`
}

type envSpec struct {
	Mode string   `json:"mode,omitempty"`
	Keys []string `json:"keys,omitempty"`
}

// settings is the body of a create request and, once settled, what is echoed to clients.
type settings struct {
	Profile       string         `json:"profile"`
	Workspace     *workspaceSpec `json:"workspace,omitempty"`
	Overlays      []overlaySpec  `json:"overlays,omitempty"`
	ExtraWritable []string       `json:"extra_writable,omitempty"`
	Binds         []bindSpec     `json:"binds,omitempty"`
	ShareNet      *bool          `json:"share_net,omitempty"`
	Env           *envSpec       `json:"env_passthrough,omitempty"`
	UID           *int64         `json:"uid,omitempty"`
	GID           *int64         `json:"gid,omitempty"`
	UIDMode       string         `json:"uid_mode,omitempty"`
	IdleSeconds   int64          `json:"idle_timeout_seconds"`
}

// settle checks the form of a request and fills in what the profile decides. It looks at no file.
func (s *settings) settle() error {
	if s.Profile == "" {
		s.Profile = profileStrict
	}
	if s.Profile != profileStrict && s.Profile != profileBalanced {
		return fmt.Errorf("profile: %q is neither strict nor balanced", s.Profile)
	}
	for _, check := range []func() error{s.settleOverlays, s.checkWritable, s.settleBinds, s.settleEnv, s.settleUser} {
		if err := check(); err != nil {
			return err
		}
	}
	if s.IdleSeconds < 0 || s.IdleSeconds > maxIdleSeconds {
		return fmt.Errorf("idle_timeout_seconds: %d is not from 0 (never) to %d", s.IdleSeconds, maxIdleSeconds)
	}
	if s.ShareNet == nil {
		shared := true
		s.ShareNet = &shared
	}
	return nil
}

func (s *settings) settleOverlays() error {
	if s.Workspace != nil {
		first := overlaySpec{Path: s.Workspace.Path, Mode: s.Workspace.Mode}
		if first.Mode == "" && s.Profile == profileBalanced {
			first.Mode = modeWritable
		}
		s.Overlays = append([]overlaySpec{first}, s.Overlays...)
	}
	if len(s.Overlays) == 0 {
		return fmt.Errorf("give workspace or at least one of overlays")
	}
	seen := map[string]bool{}
	for i := range s.Overlays {
		overlay := &s.Overlays[i]
		if err := overlay.settle(); err != nil {
			return err
		}
		if seen[overlay.Path] {
			return fmt.Errorf("overlays: %s is named twice", overlay.Path)
		}
		seen[overlay.Path] = true
	}
	s.Workspace = nil
	if len(s.Overlays) == 1 {
		s.Workspace = &workspaceSpec{Path: s.Overlays[0].Path, Mode: s.Overlays[0].Mode}
	}
	return nil
}

func (o *overlaySpec) settle() (err error) {
	if o.Path, err = allowedPath("overlays", o.Path); err != nil {
		return err
	}
	if o.Mode == "" {
		o.Mode = modeOverlay
	}
	if !slices.Contains([]string{modeWritable, modeOverlay, modeReadOnly}, o.Mode) {
		return fmt.Errorf("overlays: mode %q of %s is none of rw, overlay and ro", o.Mode, o.Path)
	}
	if o.Persist != nil && o.Mode != modeOverlay {
		return fmt.Errorf("overlays: persist of %s is only for mode overlay", o.Path)
	}
	return nil
}

func (s *settings) checkWritable() (err error) {
	for i := range s.ExtraWritable {
		if s.ExtraWritable[i], err = allowedPath("extra_writable", s.ExtraWritable[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) settleBinds() (err error) {
	for i := range s.Binds {
		bind := &s.Binds[i]
		if bind.Dest == "" {
			bind.Dest = bind.Source
		}
		if bind.Source, err = allowedPath("binds: source", bind.Source); err != nil {
			return err
		}
		if bind.Dest, err = allowedPath("binds: dest", bind.Dest); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) settleEnv() error {
	if s.Env == nil {
		return nil
	}
	if s.Env.Mode == "" {
		s.Env.Mode = envDeny
	}
	if s.Env.Mode != envDeny && s.Env.Mode != envAllow {
		return fmt.Errorf("env_passthrough: mode %q is neither deny nor allow", s.Env.Mode)
	}
	return nil
}

func (s *settings) settleUser() error {
	for name, id := range map[string]*int64{"uid": s.UID, "gid": s.GID} {
		if id != nil && (*id < 0 || *id > maxID) {
			return fmt.Errorf("%s: %d is no number of a user or group", name, *id)
		}
	}
	if s.GID != nil && s.UID == nil {
		return fmt.Errorf("gid needs uid")
	}
	if s.UIDMode == "" && s.UID != nil {
		s.UIDMode = uidModeSetpriv
	}
	if s.UIDMode != "" && s.UIDMode != uidModeSetpriv && s.UIDMode != uidModeUserns {
		return fmt.Errorf("uid_mode: %q is neither setpriv nor userns", s.UIDMode)
	}
	return nil
}

// allowedPath cleans an absolute path and refuses one outside of the allowed directories.
func allowedPath(what, text string) (string, error) {
	if !path.IsAbs(text) || strings.ContainsRune(text, 0) {
		return "", fmt.Errorf("%s: %q is not an absolute path", what, text)
	}
	clean := path.Clean(text)
	if !isAllowed(clean) {
		return "", fmt.Errorf("%s: %s is outside of %s", what, clean, strings.Join(allowedRoots, ", "))
	}
	return clean, nil
}

func isAllowed(clean string) bool {
	return slices.ContainsFunc(allowedRoots, func(root string) bool {
		return clean == root || strings.HasPrefix(clean, root+"/")
	})
}
