// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package filter keeps the packet filter's table: a fixed part, and for each sandbox a few elements
// of shared sets and a chain of its own. Whoever dies, what is in the kernel stays and stays closed.
package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/egress/policy"
)

const (
	datagramPrefix = "f_"
	streamPrefix   = "n_"
)

type sets struct {
	policed, bound, open, learned, udpAny, udpPort, closed, special, sandboxes, named *nftables.Set
}

// Filter is the one writer of its table.
type Filter struct {
	config Config
	table  *nftables.Table
	sets   sets

	mu     sync.Mutex
	conn   *nftables.Conn
	looks  *nftables.Conn                  // for what may take long and needs no turn
	boxes  map[string]*chains              // by interface
	kernel map[string]map[element]deadline // by interface, so that one sandbox's change does not look at all
}

// chains are what one sandbox has in the table now.
type chains struct {
	box              Box
	datagram, stream string // chain names; stream is "" when no rule names an address
	open             bool
	closed           bool // whether the set of its baseline has it
	known            bool // false when it was found in the kernel and nobody has said yet whose it is
}

// Box is what the table has to know of a sandbox.
type Box struct {
	Interface string
	Baseline  string // the server's own table, whose set "policed" closes the direct way; may be empty
	Address   netip.Addr
	Policy    *policy.Policy
	Mark      uint32
}

// Open loads the table and takes over what an earlier process left in it.
func Open(config Config) (*Filter, error) {
	f := &Filter{config: config, table: &nftables.Table{Name: config.Table, Family: nftables.TableFamilyINet}}
	f.describe()
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	f.conn = conn
	if f.looks, err = nftables.New(nftables.AsLasting()); err != nil {
		return nil, err
	}
	return f, f.Reload()
}

// Reload writes the fixed part again and looks at what else is there.
func (f *Filter) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.config.load(); err != nil {
		return err
	}
	f.boxes, f.kernel = map[string]*chains{}, map[string]map[element]deadline{}
	if err := f.adopt(); err != nil {
		return fmt.Errorf("reading the table: %w", err)
	}
	return nil
}

// Close gives the socket back and leaves the table.
func (f *Filter) Close() error {
	return errors.Join(f.conn.CloseLasting(), f.looks.CloseLasting())
}

// Destroy removes the table; for when no sandbox is left.
func (f *Filter) Destroy() error {
	return nft(fmt.Sprintf("add table inet %[1]s\ndelete table inet %[1]s\n", f.config.Table))
}

func (f *Filter) describe() {
	named := func(name string, kind nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: f.table, Name: name, KeyType: kind}
	}
	timed := func(name string, kind nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: f.table, Name: name, KeyType: kind, HasTimeout: true}
	}
	verdicts := func(name string) *nftables.Set {
		return &nftables.Set{Table: f.table, Name: name, KeyType: nftables.TypeIFName, IsMap: true, DataType: nftables.TypeVerdict}
	}
	pair := nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	triple := nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr, nftables.TypeInetService)
	f.sets = sets{
		policed: named("policed", nftables.TypeIFName), bound: named("bound", pair), open: named("open", nftables.TypeIFName),
		learned: timed("learned", pair), udpAny: timed("udp_any", pair), udpPort: timed("udp_port", triple),
		closed: named("closed", nftables.TypeIPAddr), special: named("special", nftables.TypeInetService),
		sandboxes: verdicts("sandboxes"), named: verdicts("named"),
	}
}

func baselineSet(table string) *nftables.Set {
	other := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	return &nftables.Set{Table: other, Name: "policed", KeyType: nftables.TypeIFName}
}

// adopt finds the chains and learned addresses that are in the kernel.
func (f *Filter) adopt() error {
	found, err := f.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	for _, chain := range found {
		if chain.Table.Name == f.table.Name {
			f.adoptChain(chain.Name)
		}
	}
	return f.adoptLearned()
}

func (f *Filter) adoptChain(name string) {
	for _, prefix := range []string{datagramPrefix, streamPrefix} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		end := strings.LastIndexByte(rest, '_')
		if end < 0 {
			continue
		}
		box := f.boxes[rest[:end]]
		if box == nil {
			box = &chains{box: Box{Interface: rest[:end]}}
			f.boxes[rest[:end]] = box
		}
		if prefix == datagramPrefix {
			box.datagram = name
		} else {
			box.stream = name
		}
	}
}

// Apply puts a sandbox under a policy, or under a new one, in one transaction.
func (f *Filter) Apply(box Box, learned []Learned) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.boxes[box.Interface]
	fresh := f.buildChains(box)
	f.replaceElements(box, old, fresh)
	if old != nil {
		f.dropChains(old)
	}
	wanted := f.relearn(box.Interface, learned)
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("the packet filter refused the policy of %s: %w", box.Interface, err)
	}
	f.boxes[box.Interface] = fresh
	f.kernel[box.Interface] = wanted
	return nil
}

func (f *Filter) buildChains(box Box) *chains {
	suffix := fmt.Sprintf("%s_%x", box.Interface, box.Mark&^uint32(MarkMask))
	fresh := &chains{box: box, datagram: datagramPrefix + suffix, known: true, closed: box.Baseline != "",
		open: box.Policy.Default == policy.Allow}
	chain := f.conn.AddChain(&nftables.Chain{Table: f.table, Name: fresh.datagram})
	for _, rule := range datagrams(box.Policy, box.Mark, &f.sets) {
		f.conn.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: rule})
	}
	if allowed := spansOf(box.Policy.AllowedPrefixes()); len(allowed) > 0 {
		fresh.stream = streamPrefix + suffix
		f.buildStream(fresh.stream, allowed)
	}
	return fresh
}

// buildStream leads TCP to the networks that a rule names to the entry, which decides.
func (f *Filter) buildStream(name string, allowed []span) {
	chain := f.conn.AddChain(&nftables.Chain{Table: f.table, Name: name})
	set := &nftables.Set{Table: f.table, Anonymous: true, Constant: true, Interval: true, KeyType: nftables.TypeIPAddr}
	var elements []nftables.SetElement
	for _, each := range allowed {
		elements = append(elements, nftables.SetElement{Key: each.firstAddr().AsSlice()})
		if each.last < 1<<32-1 {
			elements = append(elements, nftables.SetElement{Key: address(each.last + 1).AsSlice(), IntervalEnd: true})
		}
	}
	if err := f.conn.AddSet(set, elements); err != nil {
		panic(err) // only for sets that are wrongly described
	}
	goTo := []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "to_entry"}}
	f.conn.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: join(daddr(regName), lookup(set, regName), goTo)})
}

func (f *Filter) replaceElements(box Box, old, fresh *chains) {
	key := ifname(box.Interface)
	if old != nil {
		f.removeElements(old)
	}
	f.add(f.sets.policed, nftables.SetElement{Key: key})
	if box.Baseline != "" {
		f.add(baselineSet(box.Baseline), nftables.SetElement{Key: key})
	}
	f.add(f.sets.bound, nftables.SetElement{Key: append(ifname(box.Interface), box.Address.AsSlice()...)})
	if box.Policy.Default == policy.Allow {
		f.add(f.sets.open, nftables.SetElement{Key: key})
	}
	f.add(f.sets.sandboxes, jump(key, fresh.datagram))
	if fresh.stream != "" {
		f.add(f.sets.named, jump(key, fresh.stream))
	}
}

func jump(key []byte, chain string) nftables.SetElement {
	return nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// Remove takes a sandbox out of the table. Its interface must be silent by then.
func (f *Filter) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.boxes[name]
	if old == nil {
		return nil
	}
	err := f.take(old, old.closed)
	if errors.Is(err, unix.ENOENT) && old.closed { // its server has written its own table anew meanwhile
		err = f.take(old, false)
	}
	if err != nil {
		return fmt.Errorf("the packet filter did not forget %s: %w", name, err)
	}
	delete(f.boxes, name)
	delete(f.kernel, name)
	return nil
}

func (f *Filter) take(old *chains, closed bool) error {
	key := nftables.SetElement{Key: ifname(old.box.Interface)}
	f.removeElements(old)
	f.del(f.sets.policed, key)
	if closed {
		f.del(baselineSet(old.box.Baseline), key)
	}
	f.dropChains(old)
	f.relearn(old.box.Interface, nil)
	return f.conn.Flush()
}

func (f *Filter) dropChains(old *chains) {
	for _, name := range []string{old.datagram, old.stream} {
		if name != "" {
			chain := &nftables.Chain{Table: f.table, Name: name}
			f.conn.FlushChain(chain)
			f.conn.DelChain(chain)
		}
	}
}

// Unknown lists the interfaces that were found in the table, that nobody claimed since, and that no
// other baseline closes.
func (f *Filter) Unknown(baseline string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name, box := range f.boxes {
		if !box.known && (box.box.Baseline == baseline || box.box.Baseline == "") {
			names = append(names, name)
		}
	}
	return names
}

// Intact tells whether the table is still there with the chains of every sandbox. It is asked often and
// the kernel's answer is long, so that changes wait for it only when something seems to be missing.
func (f *Filter) Intact() (bool, error) {
	present, err := f.present(f.looks)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.complete(present) {
		return true, nil
	}
	present, err = f.present(f.conn) // a change may have come between
	return f.complete(present), err
}

// present are the names of the chains in the kernel.
func (f *Filter) present(conn *nftables.Conn) (map[string]bool, error) {
	found, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	present := map[string]bool{}
	for _, chain := range found {
		if chain.Table.Name == f.table.Name {
			present[chain.Name] = true
		}
	}
	return present, nil
}

func (f *Filter) complete(present map[string]bool) bool {
	intact := true
	for _, name := range f.config.hooks() {
		intact = intact && present[name]
	}
	for _, box := range f.boxes {
		intact = intact && present[box.datagram] && (box.stream == "" || present[box.stream])
	}
	return intact
}

func mark(generation uint32) uint32 { return MarkTag | generation&^uint32(MarkMask) }

// MarkOf is the connection mark of one version of a policy; never the entry's own.
func MarkOf(generation uint32) uint32 {
	if m := mark(generation); m != MarkTag {
		return m
	}
	return MarkTag | 1
}
