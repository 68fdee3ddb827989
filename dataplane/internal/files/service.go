// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"log"
	"net/http"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
)

// Config is what the service needs to know about its sandbox.
type Config struct {
	SandboxID string
	Base      string     // relative paths start here
	Lookup    api.Lookup // environment for ~, $NAME and ${NAME}
	UID, GID  uint32     // the sandbox's user; 0 acts as the daemon itself
	StateDirs []string   // where the journal of unfinished uploads may live; the first usable one is taken
}

// Service answers the files, directories and identity routes.
type Service struct {
	config   Config
	accounts accountCache
	journal  *journal
}

// New makes the service and removes what unfinished uploads of an earlier run left behind.
func New(config Config) *Service {
	if config.Lookup == nil {
		config.Lookup = func(string) (string, bool) { return "", false }
	}
	if config.Base == "" {
		config.Base = "/"
	}
	s := &Service{config: config, journal: openJournal(config.StateDirs, config.SandboxID)}
	s.journal.cleanLeftovers()
	return s
}

type handler func(c *call) error

// route is one operation below a prefix.
type route struct {
	method, path string
	handle       handler
}

func routes() []route {
	return []route{
		{"GET", "/files/info", (*call).info},
		{"DELETE", "/files", (*call).removeFiles},
		{"POST", "/files/permissions", (*call).setPermissions},
		{"POST", "/files/mv", (*call).move},
		{"GET", "/files/search", (*call).search},
		{"POST", "/files/replace", (*call).replace},
		{"POST", "/files/upload", (*call).upload},
		{"GET", "/files/download", (*call).download},
		{"GET", "/files/watch", (*call).watch},
		{"GET", "/files/tar", (*call).pack},
		{"POST", "/files/tar", (*call).unpack},
		{"GET", "/directories/list", (*call).list},
		{"POST", "/directories", (*call).makeDirectories},
		{"DELETE", "/directories", (*call).removeDirectories},
	}
}

// Routes registers the plain routes and those that name an identity.
func (s *Service) Routes(router *api.Router) {
	s.RoutesBelow(router, "", func(*http.Request) (View, error) { return s.ownView(), nil })
	s.RoutesBelow(router, "/v1/filesystem/{uid}/{gid}", s.identityView)
}

// RoutesBelow registers every operation below a prefix; pick chooses the view of each request.
func (s *Service) RoutesBelow(router *api.Router, prefix string, pick func(*http.Request) (View, error)) {
	for _, entry := range routes() {
		router.Handle(entry.method+" "+prefix+entry.path, func(w http.ResponseWriter, r *http.Request) {
			view, err := pick(r)
			c := &call{service: s, writer: w, request: r, view: view}
			if err == nil {
				err = c.perform(entry.handle)
			}
			c.finish(err)
		})
	}
}

// ownView is how the plain routes act: as the sandbox's user, or as the daemon when that is root.
func (s *Service) ownView() View {
	if s.config.UID == 0 {
		return View{}
	}
	return s.viewOf(s.config.UID, s.config.GID)
}

func (s *Service) viewOf(uid, gid uint32) View {
	known := s.accounts.get()
	identity := Identity{UID: uid, GID: gid, Groups: known.supplementary(uid)}
	return View{Enter: identity.Enter, Home: known.homes[uid]}
}

func (s *Service) identityView(r *http.Request) (View, error) {
	uid, okUID := parseID(r.PathValue("uid"))
	gid, okGID := parseID(r.PathValue("gid"))
	if !okUID || !okGID {
		return View{}, badRequest("uid and gid must be numbers from 0 to 4294967294")
	}
	if err := environment.CheckMapped(uid, gid); err != nil {
		return View{}, badRequest("%v", err)
	}
	return s.viewOf(uid, gid), nil
}

// call is one request on its way through an operation.
type call struct {
	service   *Service
	writer    http.ResponseWriter
	request   *http.Request
	view      View
	committed bool // the status line is out: a later error can only break the connection off
}

// perform runs the operation inside the call's view. (The two errors never occur together.)
func (c *call) perform(handle handler) error {
	var failure error
	if err := c.view.run(func() { failure = handle(c) }); err != nil {
		return err
	}
	return failure
}

// finish turns an error into an answer. Once the answer has begun, breaking off is the only honest end: the caller
// must never take a part for the whole.
func (c *call) finish(err error) {
	if err == nil {
		return
	}
	shown := toProblem(err)
	if c.committed {
		if c.request.Context().Err() == nil && !is(err, unix.EPIPE, unix.ECONNRESET) {
			log.Printf("event=answer_broken_off path=%q error=%q", c.request.URL.Path, shown.message)
		}
		panic(http.ErrAbortHandler)
	}
	api.WriteError(c.writer, shown.status, shown.code, shown.message)
}

func (c *call) answer(v any) error {
	api.WriteJSON(c.writer, http.StatusOK, v)
	return nil
}

// done is the empty 200 of operations without a result.
func (c *call) done() error {
	c.writer.Header().Set("Content-Length", "0")
	c.writer.WriteHeader(http.StatusOK)
	return nil
}

// readJSON reports false when the refusal is already written.
func (c *call) readJSON(v any) bool { return api.ReadJSON(c.writer, c.request, v) }

// path returns the one path a request is about.
func (c *call) path() (string, error) {
	text := c.request.URL.Query().Get("path")
	if text == "" {
		return "", missingQuery("path")
	}
	return c.resolve(text)
}

// resolve makes the path of a request absolute. A path that exists as it is written is taken as written, and so is
// one that names an unset variable: "$" is a legal character of file names, and an expansion to nothing would turn
// "$WORK/" into "/".
func (c *call) resolve(text string) (string, error) {
	name := UnescapeName(text)
	if name == "" || strings.ContainsRune(name, 0) {
		return "", badRequest("a path must not be empty or hold a NUL byte")
	}
	if !strings.Contains(name, "$") {
		return api.ExpandPath(name, c.service.config.Base, c.lookup), nil
	}
	literal := name
	if !path.IsAbs(literal) {
		literal = path.Join(c.service.config.Base, literal)
	}
	literal = path.Clean(literal)
	if _, err := lstat(literal); err == nil {
		return literal, nil
	}
	unset := false
	expanded := api.ExpandPath(name, c.service.config.Base, func(name string) (string, bool) {
		value, found := c.lookup(name)
		unset = unset || !found
		return value, found
	})
	if unset {
		return literal, nil
	}
	return expanded, nil
}

func (c *call) lookup(name string) (string, bool) {
	if name == "HOME" && c.view.Home != "" {
		return c.view.Home, true
	}
	return c.service.config.Lookup(name)
}

// paths returns the repeated path parameter as it was sent.
func (c *call) paths() ([]string, error) {
	given := c.request.URL.Query()["path"]
	if len(given) == 0 {
		return nil, missingQuery("path")
	}
	return given, nil
}

// resolveAll resolves the repeated path parameter.
func (c *call) resolveAll() ([]string, error) {
	given, err := c.paths()
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(given))
	for _, text := range given {
		p, err := c.resolve(text)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// OwnerName is the name of a user of the sandbox, or the number of one without an account.
func (s *Service) OwnerName(uid uint32) string { return EscapeName(s.accounts.get().owner(uid)) }
