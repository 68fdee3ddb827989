// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sidecar

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"casulo.dev/dataplane/internal/egress/sandbox"
)

// AuthHeader carries the token. The sandbox can connect to this API, so it must not have the token.
const AuthHeader = "OPENSANDBOX-EGRESS-AUTH"

const (
	longestBody    = 4 << 20
	nothingRemoved = "no matching targets found"
	emptied        = "an empty body denies everything"
)

type told struct {
	Status      string `json:"status"`
	Mode        string `json:"mode"`
	Enforcement string `json:"enforcementMode"`
	Reason      string `json:"reason,omitempty"`
	Policy      Policy `json:"policy"`
}

type api struct {
	keeper *Keeper
	token  string
}

// Handler is the API's routes; without a token it is open. Errors are plain text.
func Handler(keeper *Keeper, token string) http.Handler {
	a := &api{keeper, token}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/policy", a.guarded(a.policy))
	mux.HandleFunc("/credential-vault", a.guarded(noVault))
	mux.HandleFunc("/credential-vault/", a.guarded(noVault))
	return mux
}

func (a *api) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Get(AuthHeader)
		if a.token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(a.token)) != 1 {
			http.Error(w, "the header "+AuthHeader+" is missing or wrong", http.StatusUnauthorized)
			return
		}
		next(w, r)
	}
}

func noVault(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "this sidecar terminates no TLS, so it can add no credentials", http.StatusPreconditionFailed)
}

func (a *api) policy(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
	if err != nil {
		http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	reason := ""
	var change func(Policy) (Policy, error)
	switch r.Method {
	case http.MethodGet:
		answer(w, a.keeper.Held(), "")
		return
	case http.MethodPut, http.MethodPost:
		if len(body) == 0 {
			reason = emptied
		}
		change = func(Policy) (Policy, error) { return parse(body) }
	case http.MethodPatch:
		change = patching(body)
	case http.MethodDelete:
		change = deleting(body, &reason)
	default:
		w.Header().Set("Allow", "GET, POST, PUT, PATCH, DELETE")
		http.Error(w, r.Method+" is not possible here", http.StatusMethodNotAllowed)
		return
	}
	held, err := a.keeper.Change(change)
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	answer(w, held, reason)
}

func patching(body []byte) func(Policy) (Policy, error) {
	return func(held Policy) (Policy, error) {
		rules, err := parseRules(body)
		if err != nil {
			return held, err
		}
		return held.merged(rules)
	}
}

func deleting(body []byte, reason *string) func(Policy) (Policy, error) {
	return func(held Policy) (Policy, error) {
		targets, err := parseTargets(body)
		if err != nil {
			return held, err
		}
		left, changed := held.without(targets)
		if !changed {
			*reason = nothingRemoved
		}
		return left, nil
	}
}

func statusOf(err error) int {
	var ours *invalid
	var theirs *sandbox.Invalid
	switch {
	case errors.Is(err, errTooMany):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &ours), errors.As(err, &theirs):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func answer(w http.ResponseWriter, p Policy, reason string) {
	w.Header().Set("Content-Type", "application/json")
	body := told{Status: "ok", Mode: p.mode(), Enforcement: "dns+nft", Reason: reason, Policy: p}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}
