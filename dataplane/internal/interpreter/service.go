// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package interpreter owns code contexts: for each a process of the image's own interpreter with a
// small driver of ours on top, in which cells of code run one after the other and find what the
// ones before left behind. Drivers are embedded; nothing has to be installed in the image.
package interpreter

import (
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"

	"casulo.dev/dataplane/internal/api"
	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/process"
)

var errUnknown = errors.New("there is no such context")

// Service keeps the contexts of a sandbox.
type Service struct {
	supervisor *process.Supervisor
	env        *environment.Environment

	mu       sync.Mutex
	contexts []*Context          // in the order of their creation
	defaults map[string]*Context // by language, also in contexts
}

// New makes the service of a sandbox. No interpreter starts before somebody asks for its language.
func New(supervisor *process.Supervisor, env *environment.Environment) *Service {
	return &Service{supervisor: supervisor, env: env, defaults: map[string]*Context{}}
}

// create makes a context and starts its interpreter.
func (s *Service) create(name, cwd string) (*Context, error) {
	made, err := s.prepare(name, cwd)
	if err != nil {
		return nil, err
	}
	if err := made.open(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts = append(s.contexts, made)
	return made, nil
}

func (s *Service) prepare(name, cwd string) (*Context, error) {
	kind := findLanguage(name)
	if kind == nil {
		return nil, fmt.Errorf("unsupported language %q: there are %s", name, strings.Join(languageNames(), ", "))
	}
	made := &Context{ID: api.NewUUID(), language: kind, service: s, cwd: s.env.Cwd()}
	if cwd == "" {
		return made, nil
	}
	made.cwd = s.env.Expand(cwd)
	if err := os.MkdirAll(made.cwd, 0o755); err != nil {
		return nil, fmt.Errorf("cwd: %w", err)
	}
	return made, nil
}

// choose finds the context of a request: the one with the id, else the language's default.
func (s *Service) choose(id, name string) (*Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		found := s.find(id)
		if found == nil {
			return nil, errUnknown
		}
		if name != "" && findLanguage(name) != found.language {
			return nil, fmt.Errorf("context %s is one of %s, not of %s", id, found.language.name, name)
		}
		return found, nil
	}
	if name == "" {
		// Code without a language is a command, as a shell would take it.
		name = "bash"
	}
	if kind := findLanguage(name); kind != nil && s.defaults[kind.name] != nil {
		return s.defaults[kind.name], nil
	}
	made, err := s.prepare(name, "")
	if err != nil {
		return nil, err
	}
	s.defaults[made.language.name] = made
	s.contexts = append(s.contexts, made)
	return made, nil
}

func (s *Service) find(id string) *Context {
	for _, each := range s.contexts {
		if each.ID == id {
			return each
		}
	}
	return nil
}

func (s *Service) lookup(id string) *Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(id)
}

// list gives all contexts, or those of one language.
func (s *Service) list(name string) []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []*Context{}
	for _, each := range s.contexts {
		if name == "" || each.language.name == name {
			found = append(found, each)
		}
	}
	return found
}

// drop removes contexts and everything that runs in them.
func (s *Service) drop(contexts []*Context) {
	s.mu.Lock()
	s.contexts = slices.DeleteFunc(s.contexts, func(each *Context) bool { return slices.Contains(contexts, each) })
	for _, each := range contexts {
		if s.defaults[each.language.name] == each {
			delete(s.defaults, each.language.name)
		}
	}
	s.mu.Unlock()
	var group sync.WaitGroup
	for _, each := range contexts {
		group.Go(each.remove)
	}
	group.Wait()
}

func logLost(what string, err error) {
	log.Printf("event=event_not_sent kind=%s error=%q", what, err)
}
