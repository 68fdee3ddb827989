// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package main

import (
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/control"
	"casulo.dev/dataplane/internal/egress/entry"
	"casulo.dev/dataplane/internal/egress/filter"
	"casulo.dev/dataplane/internal/egress/front"
	"casulo.dev/dataplane/internal/egress/packetlog"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/resolve"
	"casulo.dev/dataplane/internal/egress/sandbox"
	"casulo.dev/dataplane/internal/vault/proxy"
)

// Config is written by the server.
type Config struct {
	Digest    string         `json:"digest"` // names this configuration
	Socket    string         `json:"socket"`
	Lock      string         `json:"lock"`
	Ports     string         `json:"ports"` // file that keeps the port numbers over restarts
	Table     string         `json:"table"`
	Group     int            `json:"group"`
	Resolvers []string       `json:"resolvers"`
	Public    []netip.Prefix `json:"public"`
	BlockDoH  bool           `json:"blockDoH"`
	DoH       []string       `json:"doh"`
	Limits    sandbox.Limits `json:"limits"`
	Addresses int            `json:"addresses"` // learned ones of all sandboxes
	Server    string         `json:"server"`    // file in which the server says where it is; may be empty
	Nice      int            `json:"nice"`      // the process's own; zero leaves it
	Audit     struct {
		Path     string `json:"path"`
		MaxBytes int64  `json:"maxBytes"`
		Keep     int    `json:"keep"`
	} `json:"audit"`

	Sidecar *Sidecar `json:"-"`
	own     uint32   // mark of the packets that a sidecar sends by itself
}

// service is everything that runs.
type service struct {
	config   Config
	filter   *filter.Filter
	registry *sandbox.Registry
	audit    *audit.Log
	packets  *packetlog.Reader
	names    *resolve.Server
	entry    *entry.Entry
	proxy    *proxy.Proxy
	api      *http.Server
	sockets  *sockets
	control  net.Listener

	rebuilt atomic.Int64
	once    sync.Once
	destroy atomic.Bool
	done    chan struct{}
}

func open(config Config) (*service, error) {
	s := &service{config: config, done: make(chan struct{})}
	var err error
	if s.audit, err = audit.Open(config.Audit.Path, config.Audit.MaxBytes, config.Audit.Keep); err != nil {
		return nil, err
	}
	if s.sockets, err = openSockets(config.Ports); err != nil {
		return nil, err
	}
	local := &hostAddresses{}
	world := &policy.World{Closed: policy.ClosedNetworks(), Public: config.Public, IsLocal: local.contains}
	if config.BlockDoH {
		world.DoH = policy.NewDoH(config.DoH)
	}
	s.filter, err = filter.Open(filter.Config{Table: config.Table, Group: config.Group,
		EntryPort: s.sockets.entryPort(), DNSPort: s.sockets.dnsPort(), Size: config.Addresses,
		Flows: config.Limits.Flows(), World: world, Own: config.own})
	if err != nil {
		return nil, err
	}
	s.registry = sandbox.NewRegistry(s.filter, world, config.Limits)
	if s.packets, err = packetlog.Open(config.Group, s.registry, s.audit); err != nil {
		return nil, err
	}
	upstream := resolve.NewUpstream(config.Resolvers)
	resolver := resolve.New(upstream, world, s.audit)
	s.names = resolve.NewServer(resolver, s.registry)
	s.entry = entry.New(s.registry, resolver, s.audit)
	s.proxy = proxy.New(s.audit)
	s.entry.Interceptor = interceptor{s.proxy}
	if config.Server != "" {
		s.entry.Front = front.New(config.Server)
	}
	if config.Sidecar != nil {
		return s, s.besideOne(upstream)
	}
	api := control.New(s.registry, resolver, s.audit, s.health, s.end)
	s.api = &http.Server{Handler: api.Handler(), ReadHeaderTimeout: 10 * time.Second}
	s.control, err = control.Listen(config.Socket)
	return s, err
}

func (s *service) health() control.Health {
	return control.Health{Config: s.config.Digest, Rebuilt: int(s.rebuilt.Load())}
}

// serve runs until end is called or a part fails; then it leaves, and what is in the kernel stays.
func (s *service) serve() error {
	failed := make(chan error, 8)
	if s.entry.Front != nil {
		go func() { failed <- s.entry.Front.Serve() }()
	}
	for _, part := range []func() error{
		func() error { return s.entry.Serve(s.sockets.entry) },
		func() error { return s.names.ServeUDP(s.sockets.udp) },
		func() error { return s.names.ServeTCP(s.sockets.tcp) },
		s.packets.Serve,
		func() error { return s.api.Serve(s.control) },
		s.chores,
	} {
		go func() {
			if err := part(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	log.Printf("event=serving entry=%d dns=%d", s.sockets.entryPort(), s.sockets.dnsPort())
	var err error
	select {
	case err = <-failed:
	case <-s.done:
	}
	return errors.Join(err, s.leave())
}

func (s *service) end(destroy bool) {
	s.once.Do(func() {
		s.destroy.Store(destroy)
		time.AfterFunc(50*time.Millisecond, func() { close(s.done) }) // the answer goes out first
	})
}

func (s *service) leave() error {
	var err error
	if s.destroy.Load() {
		err = s.filter.Destroy()
	}
	return errors.Join(err, s.api.Close(), s.proxy.Close(), s.audit.Close())
}

const (
	sweepEvery = 5 * time.Second
	lookEvery  = time.Second
)

// chores forget what is old, and write the table again when somebody else has damaged it.
func (s *service) chores() error {
	sweep, look := time.NewTicker(sweepEvery), time.NewTicker(lookEvery)
	defer sweep.Stop()
	defer look.Stop()
	for {
		select {
		case <-s.done:
			return nil
		case <-sweep.C:
			s.registry.Sweep()
			s.proxy.Sweep()
			s.audit.Sweep()
		case <-look.C:
			s.repair()
		}
	}
}

func (s *service) repair() {
	intact, err := s.filter.Intact()
	if err == nil && intact {
		return
	}
	log.Printf("event=table_damaged error=%v", err)
	s.rebuilt.Add(1)
	if err := s.registry.Reload(); err != nil {
		log.Printf("event=reload_failed error=%q", err)
	}
}
