// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

import (
	"errors"
	"fmt"
	"log"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// Learned is an address that a sandbox may reach because an allowed name resolved to it.
type Learned struct {
	Address netip.Addr
	AllUDP  bool
	UDP     []uint16
	Until   time.Time
}

// element is a member of one of the timed sets, with its key as bytes.
type element struct{ set, key string }

type deadline = time.Time

const slack = 5 * time.Second

// tablePrefix begins the names of all tables of all servers.
const tablePrefix = "casulo_"

func (f *Filter) add(set *nftables.Set, elements ...nftables.SetElement) {
	if err := f.conn.SetAddElements(set, elements); err != nil {
		panic(err) // only for anonymous sets
	}
}

func (f *Filter) del(set *nftables.Set, elements ...nftables.SetElement) {
	if err := f.conn.SetDeleteElements(set, elements); err != nil {
		panic(err) // only for anonymous sets
	}
}

// removeElements takes the sandbox out of everything but the sets that close its other ways.
func (f *Filter) removeElements(old *chains) {
	key := ifname(old.box.Interface)
	f.del(f.sets.sandboxes, jump(key, old.datagram))
	if old.stream != "" {
		f.del(f.sets.named, jump(key, old.stream))
	}
	if old.box.Address.IsValid() {
		f.del(f.sets.bound, nftables.SetElement{Key: append(ifname(old.box.Interface), old.box.Address.AsSlice()...)})
	}
	if old.open {
		f.del(f.sets.open, nftables.SetElement{Key: ifname(old.box.Interface)})
	}
}

// adoptLearned reads the timed sets, and to whom addresses are bound.
func (f *Filter) adoptLearned() error {
	for _, set := range []*nftables.Set{f.sets.learned, f.sets.udpAny, f.sets.udpPort} {
		elements, err := f.conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("set %s: %w", set.Name, err)
		}
		for _, each := range elements {
			f.known(nameOf(each.Key))[element{set.Name, string(each.Key)}] = time.Now().Add(each.Expires)
		}
	}
	return f.adoptBindings()
}

func (f *Filter) adoptBindings() error {
	bound, err := f.conn.GetSetElements(f.sets.bound)
	if err != nil {
		return fmt.Errorf("set bound: %w", err)
	}
	open, err := f.conn.GetSetElements(f.sets.open)
	if err != nil {
		return fmt.Errorf("set open: %w", err)
	}
	for _, each := range bound {
		if box := f.boxes[nameOf(each.Key)]; box != nil && len(each.Key) == 20 {
			box.box.Address = netip.AddrFrom4([4]byte(each.Key[16:]))
		}
	}
	for _, each := range open {
		if box := f.boxes[nameOf(each.Key)]; box != nil {
			box.open = true
		}
	}
	return f.adoptBaselines()
}

// adoptBaselines finds out which server's table closes the direct way of what was found.
func (f *Filter) adoptBaselines() error {
	tables, err := f.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	for _, table := range tables {
		if table.Name == f.table.Name || !strings.HasPrefix(table.Name, tablePrefix) {
			continue
		}
		closed, err := f.conn.GetSetElements(baselineSet(table.Name))
		if err != nil { // it is no baseline, or another server's and just going
			log.Printf("event=baseline_not_read table=%s error=%q", table.Name, err)
			continue // what it closes stays closed; only its elements are not tidied up later
		}
		for _, each := range closed {
			if box := f.boxes[nameOf(each.Key)]; box != nil {
				box.box.Baseline, box.closed = table.Name, true
			}
		}
	}
	return nil
}

func nameOf(key []byte) string {
	name, _, _ := strings.Cut(string(key[:16]), "\x00")
	return name
}

func elementsOf(name string, learned Learned) []element {
	pair := string(ifname(name)) + string(learned.Address.AsSlice())
	found := []element{{"learned", pair}}
	if learned.AllUDP {
		found = append(found, element{"udp_any", pair})
	}
	for _, port := range learned.UDP {
		found = append(found, element{"udp_port", pair + string(binaryutil.BigEndian.PutUint16(port)) + "\x00\x00"})
	}
	return found
}

func (f *Filter) timed(name string) *nftables.Set {
	switch name {
	case "learned":
		return f.sets.learned
	case "udp_any":
		return f.sets.udpAny
	}
	return f.sets.udpPort
}

// relearn queues the exchange of everything that a sandbox has learned.
func (f *Filter) relearn(name string, learned []Learned) map[element]deadline {
	ending := time.Now().Add(slack)
	for each, until := range f.kernel[name] {
		if until.After(ending) {
			f.del(f.timed(each.set), nftables.SetElement{Key: []byte(each.key)})
		}
	}
	wanted := map[element]deadline{}
	for _, item := range learned {
		for _, each := range elementsOf(name, item) {
			if item.Until.After(wanted[each]) {
				wanted[each] = item.Until
			}
		}
	}
	for each, until := range wanted {
		f.addTimed(each, until)
		if present := f.kernel[name][each]; present.Before(ending) && !present.IsZero() {
			wanted[each] = present // it runs out in a moment, and an addition does not change that
		}
	}
	return wanted
}

func (f *Filter) addTimed(each element, until deadline) {
	left := max(time.Until(until), time.Second)
	f.add(f.timed(each.set), nftables.SetElement{Key: []byte(each.key), Timeout: left})
}

// known are the timed elements of one interface that are in the kernel.
func (f *Filter) known(name string) map[element]deadline {
	if f.kernel[name] == nil {
		f.kernel[name] = map[element]deadline{}
	}
	return f.kernel[name]
}

// Learn opens addresses to a sandbox, or keeps them open for longer. When it returns without an
// error, packets pass.
func (f *Filter) Learn(name string, learned []Learned) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if box := f.boxes[name]; box == nil || !box.known {
		return fmt.Errorf("no sandbox has the interface %s", name)
	}
	known, renewed := f.known(name), map[element]deadline{}
	for _, item := range learned {
		for _, each := range elementsOf(name, item) {
			if known[each].Add(slack).Before(item.Until) {
				renewed[each] = item.Until
			}
		}
	}
	if len(renewed) == 0 {
		return nil
	}
	err := f.renew(known, renewed, true)
	if errors.Is(err, unix.ENOENT) { // one of them ran out just now
		err = f.renew(known, renewed, false)
	}
	if err != nil {
		return fmt.Errorf("the packet filter took no more addresses: %w", err)
	}
	for each, until := range renewed {
		known[each] = until
	}
	return nil
}

func (f *Filter) renew(known, wanted map[element]deadline, replace bool) error {
	now := time.Now()
	for each, until := range wanted {
		if replace && known[each].After(now) {
			f.del(f.timed(each.set), nftables.SetElement{Key: []byte(each.key)})
		}
		f.addTimed(each, until)
	}
	return f.conn.Flush()
}

// Sweep forgets what the kernel has let run out.
func (f *Filter) Sweep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, known := range f.kernel {
		for each, until := range known {
			if until.Before(now) {
				delete(known, each)
			}
		}
	}
}
