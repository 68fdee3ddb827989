// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"casulo.dev/dataplane/internal/egress/own"
	"casulo.dev/dataplane/internal/egress/resolve"
	"casulo.dev/dataplane/internal/egress/sandbox"
	"casulo.dev/dataplane/internal/egress/sidecar"
)

// A sidecar's own settings; a workload that shares the namespace does not see them.
const (
	envRules     = "OPENSANDBOX_EGRESS_RULES"
	envFile      = "OPENSANDBOX_EGRESS_POLICY_FILE"
	envToken     = "OPENSANDBOX_EGRESS_TOKEN"
	envAddress   = "OPENSANDBOX_EGRESS_HTTP_ADDR"
	envState     = "CASULO_EGRESS_STATE"
	envResolvers = "CASULO_EGRESS_RESOLVERS"
	envPublic    = "CASULO_EGRESS_PUBLIC"

	defaultAddress = ":18080"
	defaultState   = "/var/egress"
)

// Sidecar is what a process is told that shares the network namespace of one sandbox.
type Sidecar struct {
	Address string
	Token   string
	Source  sidecar.Source
}

// sidecarConfig reads the environment. Everything but the policy has a default.
func sidecarConfig() (Config, error) {
	state := valueOr(envState, defaultState)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return Config{}, err
	}
	c := Config{
		Lock:      filepath.Join(state, "lock"),
		Ports:     filepath.Join(state, "ports.json"),
		Table:     "casulo_sidecar_egress",
		Group:     18080,
		Resolvers: listOf(os.Getenv(envResolvers)),
		BlockDoH:  true,
		Limits:    sandbox.Limits{Connections: 1024, ConnectionsPerSecond: 200, QueriesPerSecond: 100, Addresses: 4096},
		Addresses: 65536,
		Sidecar: &Sidecar{Address: valueOr(envAddress, defaultAddress), Token: os.Getenv(envToken), Source: sidecar.Source{
			File: os.Getenv(envFile), Text: os.Getenv(envRules), Always: filepath.Join(state, "rules")}},
	}
	c.Audit.Path, c.Audit.MaxBytes, c.Audit.Keep = filepath.Join(state, "audit.jsonl"), 16<<20, 2
	for _, text := range listOf(os.Getenv(envPublic)) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return c, fmt.Errorf("%s: %w", envPublic, err)
		}
		c.Public = append(c.Public, prefix)
	}
	if len(c.Resolvers) == 0 {
		found, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil {
			return c, err
		}
		c.Resolvers = found.Servers
	}
	return c, nil
}

func valueOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func listOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// ownMark is drawn anew by each process: it is nothing that a sandbox could know.
func ownMark() uint32 {
	var drawn [4]byte
	rand.Read(drawn[:])
	return binary.NativeEndian.Uint32(drawn[:]) | 1
}

// besideOne makes the service one for the namespace in which it is.
func (s *service) besideOne(upstream *resolve.Upstream) error {
	control := own.Marking(s.config.own)
	upstream.Through(control)
	s.entry.Through(control)
	s.proxy.Through(control)
	s.registry.Sole = true
	keeper, err := sidecar.NewKeeper(s.registry, s.config.Sidecar.Source)
	if err != nil {
		return err
	}
	handler := sidecar.Handler(keeper, s.config.Sidecar.Token)
	s.api = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	s.control, err = net.Listen("tcp", s.config.Sidecar.Address)
	if err != nil {
		return errors.Join(err, s.filter.Close())
	}
	return nil
}
