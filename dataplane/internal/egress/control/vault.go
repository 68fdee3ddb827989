// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package control

import (
	"errors"
	"io"
	"net/http"

	"casulo.dev/dataplane/internal/egress/sandbox"
)

// putVault replaces a vault. Nothing of what was sent is repeated, whatever is wrong with it.
func (a *API) putVault(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
	if err != nil {
		http.Error(w, "the vault did not arrive in full, or is too large", http.StatusBadRequest)
		return
	}
	finish(w, a.registry.SetVault(r.PathValue("id"), body))
	clear(body)
}

func (a *API) removeVault(w http.ResponseWriter, r *http.Request) {
	err := a.registry.SetVault(r.PathValue("id"), nil)
	if errors.Is(err, sandbox.ErrUnknown) {
		err = nil // it is gone, and its vault with it
	}
	finish(w, err)
}
