// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// refusal is a request that the sandbox cannot honour in full, told with the reason.
type refusal struct{ message string }

func (r *refusal) Error() string { return r.message }

func refuse(format string, arguments ...any) error {
	return &refusal{fmt.Sprintf(format, arguments...)}
}

// plan is what a session will see. Every path in it exists and is free of links.
type plan struct {
	id     string
	folder string // of this session, in the home
	home   *Home
	shell  string
	strict bool
	ownNet bool
	places []place
}

// place is one part of the view.
type place struct {
	source, target string
	mode           string // rw, ro or overlay
	persist        bool
	asked          string // how the request named the target
}

// newPlan resolves the paths of settled settings against the sandbox as it is now.
func newPlan(id string, home *Home, shell string, s *settings) (*plan, error) {
	p := &plan{
		id: id, home: home, folder: filepath.Join(home.path, id), shell: shell,
		strict: s.Profile == profileStrict, ownNet: !*s.ShareNet,
	}
	for _, overlay := range s.Overlays {
		if err := p.add("overlays", overlay.Path, overlay.Path, overlay.Mode, overlay.persists()); err != nil {
			return nil, err
		}
	}
	for _, path := range s.ExtraWritable {
		if err := p.add("extra_writable", path, path, modeWritable, false); err != nil {
			return nil, err
		}
	}
	for _, bind := range s.Binds {
		mode := modeWritable
		if bind.ReadOnly {
			mode = modeReadOnly
		}
		if err := p.add("binds", bind.Source, bind.Dest, mode, false); err != nil {
			return nil, err
		}
	}
	// Shallow first, so that an inner place shadows the one around it; requests keep their order otherwise.
	slices.SortStableFunc(p.places, func(a, b place) int {
		return cmp.Compare(strings.Count(a.target, "/"), strings.Count(b.target, "/"))
	})
	return p, nil
}

func (p *plan) add(what, source, target, mode string, persist bool) error {
	added := place{mode: mode, persist: persist, asked: target}
	var err error
	if added.source, err = resolve(what, source); err != nil {
		return err
	}
	if added.target, err = resolve(what, target); err != nil {
		return err
	}
	from, err := os.Stat(added.source)
	if err != nil {
		return refuse("%s: %v", what, err)
	}
	to, err := os.Stat(added.target)
	if err != nil {
		return refuse("%s: %v", what, err)
	}
	if from.IsDir() != to.IsDir() {
		return refuse("%s: of %s and %s one is a directory and the other is not", what, source, target)
	}
	if what == "overlays" && !from.IsDir() {
		return refuse("overlays: %s is not a directory", source)
	}
	p.places = append(p.places, added)
	return nil
}

// resolve follows links; what is missing, or leads out of the allowed directories, is refused.
func resolve(what, path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", refuse("%s: %s does not exist in the sandbox; create it first", what, path)
	}
	if err != nil {
		return "", refuse("%s: %v", what, err)
	}
	if !isAllowed(real) {
		return "", refuse("%s: %s leads to %s, outside of %s", what, path, real, strings.Join(allowedRoots, ", "))
	}
	return real, nil
}

// build makes the namespaces of the session for the calling thread and its children.
func (p *plan) build() ([]*layer, error) {
	namespaces := unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID
	if p.ownNet {
		namespaces |= unix.CLONE_NEWNET
	}
	if err := p.home.enter(); err != nil {
		return nil, err
	}
	if err := privateMounts(namespaces); err != nil {
		return nil, err
	}
	if p.ownNet {
		if err := raiseLoopback(); err != nil {
			return nil, err
		}
	}
	origin := filepath.Join(p.folder, "origin")
	if err := stage(origin); err != nil {
		return nil, err
	}
	if err := p.scratch(origin); err != nil {
		return nil, err
	}
	layers, err := p.mountPlaces(origin)
	if err == nil {
		err = p.conceal()
	}
	if err != nil {
		return nil, errors.Join(err, closeLayers(layers))
	}
	return layers, nil
}

// conceal takes what all sessions keep, and the untouched view, out of the session's sight. Overlays
// hold on to what they are made of.
func (p *plan) conceal() error {
	if err := unix.Unmount(p.home.path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide the home of sessions: %w", err)
	}
	return nil
}

// stage keeps an untouched view of all files at origin and makes everything else read-only.
func stage(origin string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("copy the view of the sandbox: %w", err)
	}
	defer unix.Close(tree)
	if err := makeReadOnly("/"); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, origin, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("keep the view of the sandbox: %w", err)
	}
	return nil
}

// scratch gives the session its temporary directories: its own, or the sandbox's.
func (p *plan) scratch(origin string) error {
	if err := mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if p.strict {
		return errors.Join(
			tmpfs("/tmp", "1777", 0), tmpfs("/dev/shm", "1777", unix.MS_NOEXEC), tmpfs("/run", "755", 0),
		)
	}
	for _, path := range []string{"/tmp", "/dev/shm"} {
		if err := bind(filepath.Join(origin, path), path); err != nil {
			return err
		}
	}
	return nil
}

func (p *plan) mountPlaces(origin string) ([]*layer, error) {
	var layers []*layer
	for number, place := range p.places {
		source := filepath.Join(origin, place.source)
		if place.mode == modeOverlay {
			made, err := p.overlay(number, place, source)
			if err != nil {
				return layers, err
			}
			layers = append(layers, made)
			continue
		}
		if err := place.bind(source); err != nil {
			return layers, err
		}
	}
	return layers, nil
}

// bind shows the source. Write access that was asked for and that the sandbox itself lacks is refused.
func (p place) bind(source string) error {
	if err := bind(source, p.target); err != nil {
		return err
	}
	if p.mode == modeReadOnly {
		return makeReadOnly(p.target)
	}
	locked, err := isReadOnly(p.target)
	if err == nil && locked {
		err = refuse("%s is read-only in the sandbox itself, so no session can write to it", p.asked)
	}
	return err
}

// overlay lets the session write over the source without changing it.
func (p *plan) overlay(number int, place place, source string) (*layer, error) {
	keep := filepath.Join(p.folder, "origin", p.folder, fmt.Sprintf("layer-%d", number))
	if !place.persist {
		keep = filepath.Join(p.folder, fmt.Sprintf("layer-%d", number))
		if err := tmpfs(keep, "700", 0); err != nil {
			return nil, err
		}
	}
	upper, work := filepath.Join(keep, "upper"), filepath.Join(keep, "work")
	if err := errors.Join(os.Mkdir(upper, 0o700), os.Mkdir(work, 0o700), likeness(source, upper)); err != nil {
		return nil, err
	}
	options := "userxattr,lowerdir=" + escape(source) + ",upperdir=" + escape(upper) + ",workdir=" + escape(work)
	if err := mount("overlay", place.target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, err
	}
	opened, err := os.OpenRoot(upper)
	if err != nil {
		return nil, err
	}
	return &layer{path: place.asked, target: place.source, upper: opened}, nil
}

// escape keeps separators of mount options in a path from being taken for such.
var escape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace

// likeness gives a directory the owner and mode of another: the overlay's root shows those of its upper one.
func likeness(of, to string) error {
	info, err := os.Stat(of)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return errors.Join(os.Chown(to, int(owner.Uid), int(owner.Gid)), unix.Chmod(to, owner.Mode&0o7777))
}

// raiseLoopback brings up the one device of a new network namespace.
func raiseLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	return nil
}
