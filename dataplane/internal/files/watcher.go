// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK

// watcher turns the kernel's notifications into events about paths.
type watcher struct {
	ctx       context.Context
	root      string
	isDir     bool
	recursive bool
	hidden    string // name prefix of unfinished uploads, which nobody should see
	fd        int
	queue     *os.File
	paths     map[int]string // watch number -> directory relative to root ("" is the root)
	watches   map[string]int

	pending []watchEvent
	latest  map[string]string // path -> type of its latest pending event
	since   time.Time         // when the oldest pending event came
	move    *halfMove
	ended   bool
}

// halfMove is the first part of a rename, waiting for the second.
type halfMove struct {
	cookie   uint32
	relative string
	isDir    bool
}

// notification is one record of the kernel's queue.
type notification struct {
	watch    int
	mask     uint32
	cookie   uint32
	relative string
	name     string
}

func (n *notification) isDir() bool { return n.mask&unix.IN_ISDIR != 0 }

func (w *watcher) arm() error {
	if !w.recursive {
		return w.add("")
	}
	return w.addTree("", false)
}

func (w *watcher) add(relative string) error {
	mask := uint32(watchMask)
	if relative != "" {
		mask |= unix.IN_DONT_FOLLOW | unix.IN_ONLYDIR
	}
	number, err := unix.InotifyAddWatch(w.fd, join(w.root, relative), mask)
	if err != nil {
		return err
	}
	w.paths[number] = relative
	w.watches[relative] = number
	return nil
}

// addTree watches a directory and all below it. Each is watched before it is listed, so that nothing falls between;
// an entry that is both listed and notified is reported once.
func (w *watcher) addTree(relative string, report bool) error {
	if err := w.add(relative); err != nil {
		return err
	}
	fd, err := openAt(unix.AT_FDCWD, join(w.root, relative), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	hooks := visitor{afterOpen: func(v visit, fd int) error {
		if err := refuseVirtual(v, fd); err != nil {
			return err
		}
		return w.add(path.Join(relative, v.relative))
	}}
	hooks.enter = func(v visit) (bool, error) {
		if report && !strings.HasPrefix(v.name, w.hidden) {
			w.found(path.Join(relative, v.relative), v.status)
		}
		return v.status.isDir(), nil
	}
	hooks.unreadable = func(v visit, err error) error {
		if is(err, unix.ENOSPC) {
			return err
		}
		return nil // not readable for this identity, virtual, or gone
	}
	return walk(w.ctx, fd, hooks)
}

// found reports what was already there when its directory began to be watched. A file may have been written to the end
// by then, and who waits for that must not wait forever.
func (w *watcher) found(relative string, st *status) {
	w.report(watchEvent{Type: "created", IsDir: st.isDir()}, relative)
	if st.isRegular() {
		w.report(watchEvent{Type: "written"}, relative)
	}
}

// forget drops the watches of a directory that left the tree.
func (w *watcher) forget(relative string) {
	for known, number := range w.watches {
		if known == relative || strings.HasPrefix(known, relative+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(number)) // it may be gone by itself
			delete(w.watches, known)
			delete(w.paths, number)
		}
	}
}

// rename keeps the watches of a directory that moved inside the tree.
func (w *watcher) rename(from, to string) {
	moved := map[string]int{}
	for known, number := range w.watches {
		if known == from || strings.HasPrefix(known, from+"/") {
			delete(w.watches, known)
			moved[to+known[len(from):]] = number
		}
	}
	for relative, number := range moved {
		w.watches[relative] = number
		w.paths[number] = relative
	}
}

// take parses records of the kernel's queue.
func (w *watcher) take(data []byte) {
	for len(data) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(data[12:]))
		end := unix.SizeofInotifyEvent + length
		if end > len(data) {
			return
		}
		n := notification{
			watch:  int(int32(binary.NativeEndian.Uint32(data))),
			mask:   binary.NativeEndian.Uint32(data[4:]),
			cookie: binary.NativeEndian.Uint32(data[8:]),
			name:   string(bytes.TrimRight(data[unix.SizeofInotifyEvent:end], "\x00")),
		}
		data = data[end:]
		w.notified(n)
	}
}

func (w *watcher) notified(n notification) {
	if n.mask&unix.IN_Q_OVERFLOW != 0 {
		w.report(watchEvent{Type: "overflow"}, "")
		return
	}
	dir, known := w.paths[n.watch]
	if !known {
		return
	}
	n.relative = path.Join(dir, n.name)
	if w.move != nil && (n.mask&unix.IN_MOVED_TO == 0 || n.cookie != w.move.cookie) {
		w.movedAway()
	}
	switch {
	case n.name == "" && n.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
		w.selfGone(dir, n.mask)
	case n.mask&unix.IN_MOVED_FROM != 0:
		w.move = &halfMove{n.cookie, n.relative, n.isDir()}
	case n.mask&unix.IN_MOVED_TO != 0:
		w.movedHere(n)
	case !strings.HasPrefix(n.name, w.hidden):
		w.changed(n)
	}
}

func (w *watcher) changed(n notification) {
	event := watchEvent{IsDir: n.isDir()}
	switch {
	case n.mask&unix.IN_CREATE != 0:
		w.appeared(n.relative, n.isDir())
		return
	case n.mask&unix.IN_DELETE != 0:
		event.Type = "deleted"
	case n.mask&unix.IN_CLOSE_WRITE != 0:
		event.Type = "written"
	case n.mask&unix.IN_MODIFY != 0:
		event.Type = "modified"
	case n.mask&unix.IN_ATTRIB != 0:
		event.Type = "attributes"
	default:
		return
	}
	w.report(event, n.relative)
}

func (w *watcher) appeared(relative string, isDir bool) {
	w.report(watchEvent{Type: "created", IsDir: isDir}, relative)
	if !isDir || !w.recursive {
		return
	}
	if err := w.addTree(relative, true); err != nil && !isMissing(err) {
		w.report(watchEvent{Type: "incomplete", IsDir: true, Reason: err.Error()}, relative)
	}
}

// movedHere is the second half of a rename, or the arrival of something from outside.
func (w *watcher) movedHere(n notification) {
	from := w.move
	w.move = nil
	switch {
	case from == nil:
		w.appeared(n.relative, n.isDir())
	case strings.HasPrefix(path.Base(from.relative), w.hidden):
		w.report(watchEvent{Type: "written", IsDir: n.isDir()}, n.relative)
	default:
		w.rename(from.relative, n.relative)
		w.report(watchEvent{Type: "renamed", IsDir: n.isDir(), From: w.shown(from.relative)}, n.relative)
	}
}

func (w *watcher) movedAway() {
	gone := w.move
	w.move = nil
	if strings.HasPrefix(path.Base(gone.relative), w.hidden) {
		return
	}
	w.forget(gone.relative)
	w.report(watchEvent{Type: "deleted", IsDir: gone.isDir}, gone.relative)
}

// selfGone: of a directory below the root the parent tells; when it is the root, the watch is over.
func (w *watcher) selfGone(dir string, mask uint32) {
	if dir != "" {
		if mask&(unix.IN_DELETE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
			delete(w.paths, w.watches[dir])
			delete(w.watches, dir)
		}
		return
	}
	reason := "deleted"
	switch {
	case mask&unix.IN_MOVE_SELF != 0:
		reason = "moved"
	case mask&unix.IN_UNMOUNT != 0:
		reason = "unmounted"
	}
	if !w.ended {
		w.ended = true
		w.report(watchEvent{Type: "ended", IsDir: w.isDir, Reason: reason}, "")
	}
}

func (w *watcher) shown(relative string) string { return EscapeName(join(w.root, relative)) }

// report queues an event unless the latest one about the same path says the same.
func (w *watcher) report(event watchEvent, relative string) {
	event.Path = w.shown(relative)
	if w.latest[relative] == event.Type {
		return
	}
	if len(w.pending) == 0 {
		w.since = time.Now()
	}
	w.latest[relative] = event.Type
	w.pending = append(w.pending, event)
}

func (w *watcher) nextDeadline() time.Time {
	if len(w.pending) > 0 || w.move != nil {
		return time.Now().Add(watchSettle)
	}
	return time.Now().Add(watchHeartbeat)
}

func (w *watcher) isDue() bool {
	return w.ended || len(w.pending) >= watchBatch || (len(w.pending) > 0 && time.Since(w.since) > watchSettle)
}

// settled hands out what is to be sent.
func (w *watcher) settled() []watchEvent {
	if w.move != nil {
		w.movedAway()
	}
	events := w.pending
	w.pending = nil
	clear(w.latest)
	return events
}
