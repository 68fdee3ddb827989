// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"reflect"
	"strings"
	"testing"

	"casulo.dev/dataplane/internal/environment"
)

func settled(t *testing.T, s settings) settings {
	t.Helper()
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestProfilesDecideTheWorkspaceMode(t *testing.T) {
	for profile, mode := range map[string]string{"": modeOverlay, profileStrict: modeOverlay, profileBalanced: modeWritable} {
		s := settled(t, settings{Profile: profile, Workspace: &workspaceSpec{Path: "/workspace/"}})
		if got := s.Overlays[0]; got.Mode != mode || got.Path != "/workspace" {
			t.Errorf("profile %q: %+v", profile, got)
		}
		if !*s.ShareNet {
			t.Errorf("profile %q does not share the network", profile)
		}
	}
}

func TestTheWorkspaceComesFirst(t *testing.T) {
	s := settled(t, settings{
		Workspace: &workspaceSpec{Path: "/workspace", Mode: modeReadOnly}, Overlays: []overlaySpec{{Path: "/data"}},
	})
	want := []overlaySpec{{Path: "/workspace", Mode: modeReadOnly}, {Path: "/data", Mode: modeOverlay}}
	if !reflect.DeepEqual(s.Overlays, want) || s.Workspace != nil {
		t.Errorf("%+v", s)
	}
}

func TestPathsOutsideAreRefused(t *testing.T) {
	for _, path := range []string{"", ".", "workspace", "/", "/etc", "/workspaces", "/data/../etc", "/mnt/\x00"} {
		s := settings{Overlays: []overlaySpec{{Path: path}}}
		if err := s.settle(); err == nil {
			t.Errorf("%q is allowed", path)
		}
	}
}

func TestEnvironmentIsChosen(t *testing.T) {
	all := environment.Variables{"PATH": "/bin", "PLAIN": "1", "GITHUB_TOKEN": "2", "db_password": "3"}
	cases := []struct {
		profile string
		env     *envSpec
		want    string
	}{
		{profileStrict, nil, "PATH PLAIN"},
		{profileBalanced, nil, "GITHUB_TOKEN PATH PLAIN db_password"},
		{profileStrict, &envSpec{Mode: envDeny, Keys: []string{"PLAIN"}}, "PATH"},
		{profileBalanced, &envSpec{Mode: envDeny, Keys: []string{"PLAIN"}}, "GITHUB_TOKEN PATH db_password"},
		{profileStrict, &envSpec{Mode: envAllow, Keys: []string{"GITHUB_TOKEN"}}, "GITHUB_TOKEN PATH"},
	}
	for _, c := range cases {
		s := settings{Profile: c.profile, Env: c.env}
		var names []string
		for _, pair := range s.passOn(all).List() {
			name, _, _ := strings.Cut(pair, "=")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s %+v: %s, not %s", c.profile, c.env, got, c.want)
		}
	}
}

func TestMountsBelowProcAreRepeated(t *testing.T) {
	cases := map[string]string{
		"1 2 0:5 /sys /proc/sys ro,nosuid - proc proc rw":             "readonly:/proc/sys",
		"1 2 0:6 /null /proc/keys ro shared:1 - devtmpfs devtmpfs rw": "file:/proc/keys",
		"1 2 0:7 / /proc/self rw - tmpfs tmpfs ro":                    "directory:/proc/self",
		"1 2 0:5 / /proc rw - proc proc rw":                           "",
		"1 2 0:5 / /procedures/x rw - proc proc rw":                   "",
		"broken": "",
	}
	for line, want := range cases {
		if got := orderOf(line, "/proc"); got != want {
			t.Errorf("%s: %q, not %q", line, got, want)
		}
	}
}

func TestCapabilitySets(t *testing.T) {
	if hasAll("00000000002415fb") {
		t.Error("a small bounding set counts as everything")
	}
	h := held{1<<21 | 1<<3}
	if !h.has(21) || h.without(21).has(21) || !h.without(21).has(3) {
		t.Error("sets of capabilities are wrong")
	}
}
