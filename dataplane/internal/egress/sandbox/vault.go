// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sandbox

import (
	"errors"

	"casulo.dev/dataplane/internal/vault"
)

// ErrUnknown is the error when there is no sandbox of an id.
var ErrUnknown = errors.New("no such sandbox")

// VaultState is what can be told of a vault.
type VaultState struct {
	Revision int64 `json:"revision"`
}

// Vault is what holds now; nil when there is none.
func (s *Sandbox) Vault() *vault.Vault { return s.vault.Load() }

func (s *Sandbox) vaultState() *VaultState {
	if held := s.Vault(); held != nil {
		return &VaultState{held.Revision}
	}
	return nil
}

// hold makes a vault the one for every request from now on.
func (s *Sandbox) hold(held *vault.Vault) {
	s.vault.Store(held)
	s.mu.Lock()
	open := make([]Connection, 0, len(s.open))
	for each := range s.open {
		open = append(open, each)
	}
	s.mu.Unlock()
	for _, each := range open {
		each.Rebind()
	}
}

// SetVault replaces a sandbox's vault; no data removes it.
func (r *Registry) SetVault(id string, data []byte) error {
	r.change.Lock()
	defer r.change.Unlock()
	known := r.Get(id)
	if known == nil {
		return ErrUnknown
	}
	var held *vault.Vault
	if data != nil {
		var err error
		if held, err = vault.Parse(data, known.Vault()); err != nil {
			return &Invalid{err}
		}
	}
	known.hold(held)
	return nil
}

// told is what a definition says of the vault.
type told struct {
	said bool
	held *vault.Vault
}

// readVault takes the vault out of a definition, which is kept and shown without it.
func (r *Registry) readVault(d *Definition) (told, error) {
	data := d.Vault
	d.Vault = nil
	if len(data) == 0 {
		return told{}, nil
	}
	if string(data) == "null" {
		return told{said: true}, nil
	}
	var earlier *vault.Vault
	if known := r.Get(d.ID); known != nil {
		earlier = known.Vault()
	}
	held, err := vault.Parse(data, earlier)
	if err != nil {
		return told{}, &Invalid{err}
	}
	return told{true, held}, nil
}
