// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/files"
	"casulo.dev/dataplane/internal/shell"
)

// States of a session.
const (
	statusActive = "active"
	statusDead   = "dead"
)

// maxRuns bounds how many background runs of one session are remembered after their end.
const maxRuns = 256

var (
	errDeleted = errors.New("the session was deleted")
	errDead    = errors.New("the session is dead: something ended its first process; delete it and create another")
)

// session is one isolated shell session.
type session struct {
	id       string
	service  *Service
	settings settings
	created  time.Time
	as       identity
	world    *world
	state    *os.File
	folder   string

	turn chan struct{} // holds a token while no foreground run goes on
	gone chan struct{} // closed when the session is deleted

	shell *living // only touched by the holder of the turn

	mu      sync.Mutex
	closed  bool
	lastRun time.Time
	lastUse time.Time
	busy    int
	timer   *time.Timer
	runs    map[string]*run
	order   []string // of runs, oldest first
}

// open makes the world of a session and its shell. On an error nothing is left.
func (s *Service) open(wanted settings) (*session, error) {
	as, err := s.identify(&wanted)
	if err != nil {
		return nil, err
	}
	id := api.NewUUID()
	p, err := newPlan(id, s.home, as.program, &wanted)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	as.cwd = p.startDirectory(wanted.Overlays[0].Path)
	made := &session{
		id: id, service: s, settings: wanted, created: now, lastRun: now, lastUse: now, as: as, folder: p.folder,
		turn: make(chan struct{}, 1), gone: make(chan struct{}), runs: map[string]*run{},
	}
	if err := made.start(p); err != nil {
		made.discard()
		return nil, err
	}
	made.turn <- struct{}{}
	return made, nil
}

// start makes the world and the shell. The shell comes before the helper, so that the session's process
// numbers begin with it.
func (s *session) start(p *plan) (err error) {
	supervisor := s.service.supervisor
	if s.state, err = shell.MemoryFile("state"); err != nil {
		return err
	}
	if err := s.service.home.visit(p.prepareFolder); err != nil {
		return err
	}
	if s.world, err = createWorld(supervisor, p); err != nil {
		return err
	}
	if s.shell, err = startShell(supervisor, s.world, s.id, s.as, s.state); err != nil {
		return err
	}
	if err := s.world.mountProcesses(supervisor, s.id); err != nil {
		return err
	}
	return s.shell.begin(false)
}

// prepareFolder makes what the mounts of a session are put on.
func (p *plan) prepareFolder() error {
	if err := os.MkdirAll(filepath.Join(p.folder, "origin"), 0o700); err != nil {
		return fmt.Errorf("keep a session's files: %w", err)
	}
	for number := range p.places {
		if err := os.Mkdir(filepath.Join(p.folder, fmt.Sprintf("layer-%d", number)), 0o700); err != nil {
			return fmt.Errorf("keep a session's files: %w", err)
		}
	}
	return nil
}

// startDirectory is where the first overlay of a request is.
func (p *plan) startDirectory(asked string) string {
	for _, place := range p.places {
		if place.asked == asked {
			return place.target
		}
	}
	return "/"
}

// identify finds the user, the variables and the shell of a session.
func (s *Service) identify(wanted *settings) (identity, error) {
	found, err := s.env.Identify(wanted.UID, wanted.GID)
	if err != nil {
		return identity{}, refuse("uid: %v", err)
	}
	variables := wanted.passOn(s.env.ComposeFor(found, nil))
	program, err := variables.Shell()
	if err != nil || !program.Bash {
		return identity{}, refuse("the sandbox's image has no bash, and isolated sessions need one")
	}
	return identity{program: program.Path, credential: found.Credential, variables: variables}, nil
}

// revive replaces a shell that ended; the caller holds the turn.
func (s *session) revive() error {
	if !s.world.alive() {
		return errDead
	}
	if s.shell != nil && s.shell.Alive() {
		return nil
	}
	if s.shell != nil {
		s.shell.Release()
		s.shell = nil
	}
	started, err := startShell(s.service.supervisor, s.world, s.id, s.as, s.state)
	if err != nil {
		return err
	}
	s.shell = started
	return started.begin(true)
}

// enter waits for the turn.
func (s *session) enter(ctx context.Context) error {
	select {
	case <-s.turn:
	case <-s.gone:
		return errDeleted
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-s.gone:
		s.turn <- struct{}{}
		return errDeleted
	default:
		return nil
	}
}

// use notes that somebody works with the session; leave notes the end of that.
func (s *session) use() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.lastUse = time.Now()
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.lastUse = time.Now()
}

// watchIdleness deletes the session once nobody used it for long enough.
func (s *session) watchIdleness() {
	if s.settings.IdleSeconds == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.idleLeft(), s.onIdle)
}

func (s *session) onIdle() {
	s.mu.Lock()
	left := s.idleLeft()
	if left > 0 && !s.closed {
		s.timer.Reset(left)
	}
	s.mu.Unlock()
	if left <= 0 {
		log.Printf("event=session_idle id=%s", s.id)
		s.service.remove(s.id)
	}
}

// idleLeft is how long until the session counts as idle; the caller holds mu.
func (s *session) idleLeft() time.Duration {
	limit := time.Duration(s.settings.IdleSeconds) * time.Second
	if s.busy > 0 {
		return limit
	}
	return limit - time.Since(s.lastUse)
}

// remember keeps a background run findable.
func (s *session) remember(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[r.id] = r
	s.order = append(s.order, r.id)
	for len(s.order) > maxRuns && !s.runs[s.order[0]].running() {
		s.runs[s.order[0]].log.Drop()
		delete(s.runs, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *session) find(runID string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[runID]
}

// close ends everything in the session and removes what it kept. Only the first call does something.
func (s *session) close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if !first {
		return
	}
	close(s.gone)
	<-s.turn
	s.discard()
	s.mu.Lock()
	runs := slices.Collect(maps.Values(s.runs))
	s.mu.Unlock()
	for _, r := range runs {
		<-r.done
		r.log.Drop()
	}
}

// discard gives back whatever of a session exists.
func (s *session) discard() {
	if s.world != nil {
		if err := s.world.close(); err != nil {
			log.Printf("event=session_world_not_closed id=%s error=%q", s.id, err)
		}
	}
	if s.shell != nil {
		<-s.shell.Process.Done()
		s.shell.Release()
	}
	closeLogged(s.state)
	if err := s.service.home.visit(func() error { return removeFolder(s.folder) }); err != nil {
		log.Printf("event=session_folder_not_removed id=%s error=%q", s.id, err)
	}
}

// removeFolder deletes what a session wrote. Its mounts are gone with its last process or shortly after.
func removeFolder(folder string) error {
	deadline := time.Now().Add(stopGrace)
	for {
		err := os.RemoveAll(folder)
		if err == nil || !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// view is how file operations see the session: its files, with the rights of its user.
func (s *session) view() files.View {
	var as *files.Identity
	if c := s.as.credential; c != nil {
		as = &files.Identity{UID: c.Uid, GID: c.Gid, Groups: c.Groups}
	}
	home, _ := s.as.variables.Lookup("HOME")
	return files.View{Enter: func() error { return s.world.look(as) }, Home: home, CountReplacements: true}
}
