// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

import (
	"net/netip"
	"strings"
	"testing"

	"casulo.dev/dataplane/internal/egress/policy"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestNetworksAreMerged(t *testing.T) {
	got := spansOf(prefixes("10.0.0.0/24", "10.0.1.0/24", "10.0.0.128/25", "2001:db8::/32", "255.0.0.0/8", "0.0.0.0/8"))
	var texts []string
	for _, each := range got {
		texts = append(texts, each.firstAddr().String()+"-"+each.lastAddr().String())
	}
	want := "0.0.0.0-0.255.255.255 10.0.0.0-10.0.1.255 255.0.0.0-255.255.255.255"
	if strings.Join(texts, " ") != want {
		t.Error(texts)
	}
}

func TestPublicExceptionsAreCutOut(t *testing.T) {
	config := Config{World: &policy.World{Closed: prefixes("198.18.0.0/15", "10.0.0.0/8"), Public: prefixes("198.18.1.0/24")}}
	if got := config.Closed(); got != "10.0.0.0-10.255.255.255, 198.18.0.0-198.18.0.255, 198.18.2.0-198.19.255.255" {
		t.Error(got)
	}
}

func TestTheTableIsText(t *testing.T) {
	config := Config{Table: "t", Group: 7, EntryPort: 1, DNSPort: 2, Size: 3, Flows: 4, World: &policy.World{Closed: policy.ClosedNetworks()}}
	text, err := config.text()
	if err != nil || strings.Contains(text, "<no value>") || !strings.Contains(text, "redirect to :1\n") {
		t.Error(text, err)
	}
}

func TestMarks(t *testing.T) {
	for _, generation := range []uint32{0, 1, 0xffffffff, 0x00100000} {
		if mark := MarkOf(generation); mark&MarkMask != MarkTag || mark == MarkTag {
			t.Errorf("%x", mark)
		}
	}
}
