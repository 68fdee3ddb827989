// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import "net/netip"

var closedNetworks = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	"::/127", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
	"2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10", "ff00::/8",
}

// ClosedNetworks are those that are not public: special-purpose, private, link-local, multicast,
// reserved, and the IPv6 forms into which an IPv4 address can be dressed.
func ClosedNetworks() []netip.Prefix {
	var list []netip.Prefix
	for _, text := range closedNetworks {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}
