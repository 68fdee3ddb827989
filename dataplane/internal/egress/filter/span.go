// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// span is a range of IPv4 addresses, both ends included.
type span struct{ first, last uint64 }

func spanOf(prefix netip.Prefix) span {
	if !prefix.Addr().Is4() {
		return span{1, 0}
	}
	start := prefix.Masked().Addr().As4()
	first := uint64(binary.BigEndian.Uint32(start[:]))
	return span{first, first + 1<<(32-prefix.Bits()) - 1}
}

// spansOf merges networks into ranges that neither overlap nor touch, in order.
func spansOf(prefixes []netip.Prefix) []span {
	var all []span
	for _, prefix := range v4Only(prefixes) {
		all = append(all, spanOf(prefix))
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var merged []span
	for _, each := range all {
		if end := len(merged) - 1; end >= 0 && each.first <= merged[end].last+1 {
			merged[end].last = max(merged[end].last, each.last)
		} else {
			merged = append(merged, each)
		}
	}
	return merged
}

// without cuts a hole into ranges.
func without(ranges []span, hole span) []span {
	var kept []span
	for _, each := range ranges {
		if hole.last < each.first || hole.first > each.last {
			kept = append(kept, each)
			continue
		}
		if each.first < hole.first {
			kept = append(kept, span{each.first, hole.first - 1})
		}
		if each.last > hole.last {
			kept = append(kept, span{hole.last + 1, each.last})
		}
	}
	return kept
}

func address(value uint64) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(value))))
}

func (s span) firstAddr() netip.Addr { return address(s.first) }
func (s span) lastAddr() netip.Addr  { return address(s.last) }
