// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sandbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/egress/filter"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/vault"
)

// callsPerSecond bounds the requests for the policy API that come out of one sandbox.
const callsPerSecond = 20

var errChanged = errors.New("the policy changed meanwhile")

// Definition is a sandbox as the server describes it.
type Definition struct {
	ID        string          `json:"id"`
	Interface string          `json:"interface"`
	Address   netip.Addr      `json:"address"`
	Baseline  string          `json:"baseline"` // the table that closes its direct way; may be empty
	Policy    json.RawMessage `json:"policy"`
	Vault     json.RawMessage `json:"vault"` // missing: it stays as it is; null: there is none
}

// State is what can be told of a sandbox.
type State struct {
	ID           string          `json:"id"`
	Interface    string          `json:"interface"`
	Address      netip.Addr      `json:"address"`
	Policy       json.RawMessage `json:"policy"`
	Vault        *VaultState     `json:"vault"`
	Connections  int             `json:"connections"`
	Names        int             `json:"names"`
	Addresses    int             `json:"addresses"`
	Failures     int             `json:"failures"`
	LastFailure  string          `json:"lastFailure,omitempty"`
	Destinations []Seen          `json:"-"`
}

// Seen is a destination and how often it was reached.
type Seen struct {
	Destination
	Count int `json:"count"`
}

// Registry is all sandboxes of this process.
type Registry struct {
	filter *filter.Filter
	world  *policy.World
	limits Limits

	change sync.Mutex // one change of policies at a time
	mu     sync.RWMutex
	byID   map[string]*Sandbox
	byAddr map[netip.Addr]*Sandbox
	byIdx  map[int]*Sandbox

	// Sole says that there is one sandbox, which shares this namespace and so has every address of it.
	Sole bool
}

// NewRegistry is empty.
func NewRegistry(f *filter.Filter, world *policy.World, limits Limits) *Registry {
	return &Registry{filter: f, world: world, limits: limits,
		byID: map[string]*Sandbox{}, byAddr: map[netip.Addr]*Sandbox{}, byIdx: map[int]*Sandbox{}}
}

// World is what decisions depend on besides policies.
func (r *Registry) World() *policy.World { return r.world }

// At finds the sandbox that has an address; nil when there is none.
func (r *Registry) At(address netip.Addr) *Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.Sole {
		return r.byIdx[0]
	}
	return r.byAddr[address.Unmap()]
}

// On finds the sandbox behind an interface; nil when there is none.
func (r *Registry) On(index int) *Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.Sole {
		return r.byIdx[0]
	}
	return r.byIdx[index]
}

// Sends finds the sandbox whose packet came through an interface from an address; nil when none may
// send such a one.
func (r *Registry) Sends(index int, from netip.Addr) *Sandbox {
	found := r.On(index)
	if found != nil && (r.Sole || found.Address == from.Unmap()) {
		return found
	}
	return nil
}

// Get finds a sandbox by its id; nil when there is none.
func (r *Registry) Get(id string) *Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

// All lists the sandboxes.
func (r *Registry) All() []*Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*Sandbox, 0, len(r.byID))
	for _, each := range r.byID {
		list = append(list, each)
	}
	return list
}

// Put sets the policy of a sandbox, known or new. On an error everything stays as it was.
func (r *Registry) Put(d Definition) error {
	parsed, err := policy.Parse(d.Policy)
	if err != nil {
		return &Invalid{err}
	}
	index, err := indexOf(d.Interface)
	if err != nil {
		return &Invalid{fmt.Errorf("interface %s: %w", d.Interface, err)}
	}
	if !d.Address.Is4() {
		return &Invalid{fmt.Errorf("%s is no IPv4 address", d.Address)}
	}
	r.change.Lock()
	defer r.change.Unlock()
	told, err := r.readVault(&d)
	if err != nil {
		return err
	}
	if err := r.makeRoom(d); err != nil {
		return err
	}
	known := r.Get(d.ID)
	if known == nil {
		return r.admit(d, parsed, index, told.held)
	}
	r.move(known, index)
	if err := known.change(d, parsed); err != nil {
		return err
	}
	if told.said {
		known.hold(told.held)
	}
	return nil
}

// indexOf asks for one interface; the standard library would list all of them.
func indexOf(name string) (int, error) {
	if name == "" {
		return 0, nil // this namespace itself
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(socket)
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}

// makeRoom removes what an earlier sandbox left at the interface, or the same one elsewhere.
func (r *Registry) makeRoom(d Definition) error {
	for _, other := range r.All() {
		same := other.ID == d.ID
		if same != (other.Interface == d.Interface) || same && !other.isAt(d) {
			if err := r.remove(other); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sandbox) isAt(d Definition) bool {
	return s.Address == d.Address && s.Baseline == d.Baseline
}

// move follows an interface that was made anew under its old name.
func (r *Registry) move(s *Sandbox, index int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byIdx, s.Index)
	s.Index = index
	r.byIdx[index] = s
}

func (r *Registry) admit(d Definition, parsed *policy.Policy, index int, held *vault.Vault) error {
	s := &Sandbox{ID: d.ID, Interface: d.Interface, Index: index, Address: d.Address, Baseline: d.Baseline,
		limits: r.limits, conns: newBucket(r.limits.ConnectionsPerSecond), queries: newBucket(r.limits.QueriesPerSecond),
		calls:  newBucket(callsPerSecond),
		filter: r.filter, world: r.world, definition: d, generation: randomStart(),
		learned: map[string]map[netip.Addr]time.Time{}, open: map[Connection]struct{}{}, seen: map[Destination]int{}}
	s.policy.Store(parsed)
	s.vault.Store(held)
	if err := r.filter.Apply(s.box(parsed), nil); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[d.ID], r.byAddr[d.Address], r.byIdx[index] = s, s, s
	return nil
}

// randomStart keeps marks of an earlier process from meaning something now.
func randomStart() uint32 {
	var bytes [4]byte
	rand.Read(bytes[:])
	return binary.LittleEndian.Uint32(bytes[:])
}

func (s *Sandbox) box(p *policy.Policy) filter.Box {
	return filter.Box{Interface: s.Interface, Baseline: s.Baseline, Address: s.Address, Policy: p,
		Mark: filter.MarkOf(s.generation)}
}

// change replaces the policy, forgets what the new one would not have resolved, and judges again
// what is open.
func (s *Sandbox) change(d Definition, parsed *policy.Policy) error {
	s.mu.Lock()
	kept := s.stillResolvable(parsed)
	s.generation++
	if err := s.filter.Apply(s.box(parsed), kept); err != nil {
		s.fail(err)
		s.mu.Unlock()
		return err
	}
	s.policy.Store(parsed)
	s.definition = d
	open := make([]Connection, 0, len(s.open))
	for each := range s.open {
		open = append(open, each)
	}
	s.mu.Unlock()
	for _, each := range open {
		each.Judge(parsed)
	}
	return nil
}

func (s *Sandbox) stillResolvable(parsed *policy.Policy) []filter.Learned {
	var kept []filter.Learned
	for name, known := range s.learned {
		if !parsed.Resolvable(s.world, name).Allow {
			s.pairs -= len(known)
			delete(s.learned, name)
			continue
		}
		for address, until := range known {
			kept = append(kept, s.forFilter(parsed, name, address, until))
		}
	}
	return kept
}

// Sync makes the given sandboxes all that there are at one baseline.
func (r *Registry) Sync(baseline string, all []Definition) error {
	wanted, interfaces := map[string]bool{}, map[string]bool{}
	var failed []error
	for _, each := range all {
		wanted[each.ID], interfaces[each.Interface] = true, true
		err := r.Put(each)
		if errors.Is(err, unix.ENODEV) {
			continue // it has ended, or stands still; without an interface nothing can leave it
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("sandbox %s: %w", each.ID, err))
		}
	}
	for _, each := range r.All() {
		if !wanted[each.ID] && each.Baseline == baseline {
			failed = append(failed, r.Delete(each.ID))
		}
	}
	for _, name := range r.filter.Unknown(baseline) {
		if !interfaces[name] {
			failed = append(failed, r.filter.Remove(name))
		}
	}
	return errors.Join(failed...)
}

// Delete forgets a sandbox. It is no error when there is none.
func (r *Registry) Delete(id string) error {
	r.change.Lock()
	defer r.change.Unlock()
	if known := r.Get(id); known != nil {
		return r.remove(known)
	}
	return nil
}

func (r *Registry) remove(s *Sandbox) error {
	if err := r.filter.Remove(s.Interface); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.byID, s.ID)
	delete(r.byAddr, s.Address)
	delete(r.byIdx, s.Index)
	r.mu.Unlock()
	s.mu.Lock()
	s.gone = true
	open := s.open
	s.open = map[Connection]struct{}{}
	s.mu.Unlock()
	for each := range open {
		each.End()
	}
	return nil
}

// Reload writes the packet filter's table anew, with every sandbox in it.
func (r *Registry) Reload() error {
	r.change.Lock()
	defer r.change.Unlock()
	if err := r.filter.Reload(); err != nil {
		return err
	}
	var failed []error
	for _, each := range r.All() {
		each.mu.Lock()
		kept := each.stillResolvable(each.Policy())
		each.generation++
		failed = append(failed, each.filter.Apply(each.box(each.Policy()), kept))
		each.mu.Unlock()
	}
	return errors.Join(failed...)
}

// Sweep forgets what ran out.
func (r *Registry) Sweep() {
	now := time.Now()
	for _, each := range r.All() {
		each.sweep(now)
	}
	r.filter.Sweep()
}

// State tells about one sandbox.
func (s *Sandbox) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := State{ID: s.ID, Interface: s.Interface, Address: s.Address, Policy: s.definition.Policy, Vault: s.vaultState(),
		Connections: len(s.open), Names: len(s.learned), Addresses: s.pairs,
		Failures: s.failures, LastFailure: s.failure}
	for each, count := range s.seen {
		told.Destinations = append(told.Destinations, Seen{each, count})
	}
	return told
}

// Invalid is an error of the caller.
type Invalid struct{ err error }

func (e *Invalid) Error() string { return e.err.Error() }

// Unwrap gives what was wrong.
func (e *Invalid) Unwrap() error { return e.err }
