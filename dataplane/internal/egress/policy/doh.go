// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import (
	"net/netip"
	"strings"
)

// DoH is the list of public resolvers that answer over HTTPS, by name and by address.
type DoH struct {
	names     map[string]bool
	addresses map[netip.Addr]bool
}

// NewDoH is the built-in list and some more names or addresses.
func NewDoH(more []string) *DoH {
	list := &DoH{map[string]bool{}, map[netip.Addr]bool{}}
	for _, entry := range append(strings.Fields(knownResolvers), more...) {
		if address, err := netip.ParseAddr(entry); err == nil {
			list.addresses[address.Unmap()] = true
		} else {
			list.names[strings.ToLower(entry)] = true
		}
	}
	return list
}

// Covers tells whether a query goes to a listed resolver. A listed name covers the names below it.
func (d *DoH) Covers(q Query) bool {
	if d == nil {
		return false
	}
	if q.Address.IsValid() && d.addresses[q.Address.Unmap()] && q.Protocol != ICMP {
		return true
	}
	for name := q.Name; name != ""; _, name, _ = strings.Cut(name, ".") {
		if d.names[name] {
			return true
		}
	}
	return false
}

const knownResolvers = `
	1.1.1.1 1.0.0.1 1.1.1.2 1.0.0.2 1.1.1.3 1.0.0.3 8.8.8.8 8.8.4.4 9.9.9.9 9.9.9.10 9.9.9.11
	149.112.112.112 149.112.112.10 149.112.112.11 208.67.222.222 208.67.220.220 208.67.222.123
	94.140.14.14 94.140.15.15 94.140.14.140 94.140.14.15 185.228.168.9 185.228.169.9 185.228.168.168
	45.90.28.0 45.90.30.0 76.76.2.0 76.76.10.0 76.76.2.11 76.76.19.19 76.223.122.150 185.222.222.222
	45.11.45.11 116.202.176.26 84.200.69.80 84.200.70.40 91.239.100.100 89.233.43.71 193.110.81.0
	185.253.5.0 193.110.81.9 185.253.5.9 194.242.2.2 194.242.2.3 194.242.2.4 223.5.5.5 223.6.6.6
	119.29.29.29 1.12.12.12 120.53.53.53 101.101.101.101 180.131.144.144 77.88.8.8 77.88.8.1
	cloudflare-dns.com one.one.one.one dns.google dns.google.com dns.quad9.net dns9.quad9.net
	dns10.quad9.net dns11.quad9.net doh.opendns.com doh.familyshield.opendns.com dns.umbrella.com
	dns.adguard.com dns.adguard-dns.com unfiltered.adguard-dns.com family.adguard-dns.com
	d.adguard-dns.com dns.nextdns.io doh.cleanbrowsing.org freedns.controld.com dns.controld.com
	doh.dns.sb dns.sb doh.libredns.gr doh.mullvad.net dns.mullvad.net doh.applied-privacy.net
	dns.alidns.com doh.pub dns.pub doh.360.cn dns.twnic.tw public.dns.iij.jp doh.xfinity.com
	dns.digitale-gesellschaft.ch doh.dnslify.com odvr.nic.cz doh.ffmuc.net resolver-eu.lelux.fi
	dns0.eu dns.dns0.eu kids.dns0.eu zero.dns0.eu open.dns0.eu dns.njal.la doh.tiarap.org
	dns.switch.ch doh.seby.io dns.wikimedia.org wikimedia-dns.org chromium.dns.nextdns.io
	firefox.dns.nextdns.io mozilla.cloudflare-dns.com use-application-dns.net dns.rabbitdns.org
	common.dot.dns.yandex.net safe.dot.dns.yandex.net dnsforge.de fdns1.dismail.de dns.hostux.net
	anycast.dns.nextdns.io doh.bortzmeyer.fr dns.aa.net.uk ns0.fdn.fr ns1.fdn.fr doh.sb
`
