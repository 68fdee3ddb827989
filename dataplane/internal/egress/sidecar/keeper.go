// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package sidecar holds the policy of the one sandbox whose network namespace this process shares:
// where it comes from, where it is kept, and the HTTP API by which its owner changes it.
package sidecar

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"casulo.dev/dataplane/internal/egress/sandbox"
)

const name = "sandbox"

// Source is where the first policy comes from: the file, if it is there, else the text. Neither
// denies everything. Changes are kept in the file, if it has a name.
type Source struct {
	File   string
	Text   string
	Always string // folder of the lists deny.always and allow.always
}

// Keeper changes the policy, one change at a time.
type Keeper struct {
	registry *sandbox.Registry
	source   Source
	first    []Rule // what comes before every policy, and is not told

	mu   sync.Mutex
	held Policy
}

// NewKeeper puts the sandbox under its first policy.
func NewKeeper(registry *sandbox.Registry, source Source) (*Keeper, error) {
	k := &Keeper{registry: registry, source: source}
	var err error
	if k.first, err = readAlways(source.Always); err != nil {
		return nil, err
	}
	text := []byte(source.Text)
	if source.File != "" {
		if text, err = os.ReadFile(source.File); errors.Is(err, os.ErrNotExist) {
			text, err = []byte(source.Text), nil
		}
	}
	if err != nil {
		return nil, err
	}
	if k.held, err = parse(text); err != nil {
		return nil, fmt.Errorf("the first policy: %w", err)
	}
	return k, k.apply(k.held)
}

func readAlways(folder string) ([]Rule, error) {
	var rules []Rule
	for _, action := range []string{"deny", "allow"} {
		file, err := os.Open(filepath.Join(folder, action+".always"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if target, _, _ := strings.Cut(lines.Text(), "#"); strings.TrimSpace(target) != "" {
				rules = append(rules, Rule{Action: action, Target: strings.TrimSpace(target)})
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// Held is the policy that holds.
func (k *Keeper) Held() Policy {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// Change replaces the policy by what `change` makes of it. On an error the one before stays, in the
// packet filter and in the file.
func (k *Keeper) Change(change func(Policy) (Policy, error)) (Policy, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wanted, err := change(k.held)
	if err != nil {
		return k.held, &invalid{err}
	}
	if err := k.apply(wanted); err != nil {
		return k.held, err
	}
	if err := k.write(wanted); err != nil {
		return k.held, errors.Join(fmt.Errorf("the policy could not be kept: %w", err), k.apply(k.held))
	}
	k.held = wanted
	return wanted, nil
}

func (k *Keeper) apply(p Policy) error {
	whole := Policy{Default: p.Default, Egress: append(append([]Rule{}, k.first...), p.Egress...)}
	text, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	return k.registry.Put(sandbox.Definition{ID: name, Address: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Policy: text})
}

func (k *Keeper) write(p Policy) error {
	if k.source.File == "" {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	draft := k.source.File + ".new"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, k.source.File)
}

// invalid is an error of the caller.
type invalid struct{ err error }

func (e *invalid) Error() string { return e.err.Error() }
func (e *invalid) Unwrap() error { return e.err }
