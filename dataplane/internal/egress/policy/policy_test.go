// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package policy

import (
	"net/netip"
	"testing"
)

var world = &World{Closed: ClosedNetworks(), Public: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}, DoH: NewDoH([]string{"doh.test"})}

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	parsed, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestB057Wildcards(t *testing.T) {
	p := parse(t, `{"egress":[{"action":"allow","target":"*.Example.test."}]}`)
	for name, want := range map[string]bool{
		"a.example.test": true, "a.b.example.test": true, "A.EXAMPLE.TEST.": true,
		"example.test": false, "notexample.test": false, "example.test.evil.test": false, "a.example.test.evil": false,
	} {
		canonical, err := Canonical(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Resolvable(world, canonical).Allow; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, odd := range []string{"*", "a.*.test", "**.test", "*.", "*a.test", "a..test", "1.2.3", "0x7f.1", "-a.test", "a_b.test/", ""} {
		if _, err := Parse([]byte(`{"egress":[{"action":"allow","target":"` + odd + `"}]}`)); err == nil {
			t.Errorf("%q was accepted", odd)
		}
	}
}

func TestInternationalNamesAreComparedInASCII(t *testing.T) {
	p := parse(t, `{"egress":[{"action":"allow","target":"bücher.test"}]}`)
	if !p.Resolvable(world, "xn--bcher-kva.test").Allow {
		t.Error("the ASCII form is denied")
	}
}

func query(name, address string, port uint16, protocol Protocol) Query {
	q := Query{Name: name, Port: port, Protocol: protocol}
	if address != "" {
		q.Address = netip.MustParseAddr(address)
	}
	return q
}

func TestTheFirstMatchingRuleDecides(t *testing.T) {
	p := parse(t, `{"defaultAction":"deny","egress":[
		{"action":"deny","target":"bad.good.test"}, {"action":"allow","target":"*.good.test","ports":[443,"8000-8010"]},
		{"action":"allow","target":"93.184.0.0/16"}, {"action":"allow","target":"10.1.2.3","ports":[5432]},
		{"action":"allow","target":"9.9.9.9","ports":[853],"protocols":["tcp","udp"]},
		{"action":"allow","target":"1.2.3.4","protocols":["icmp"]}]}`)
	for _, c := range []struct {
		q    Query
		want bool
	}{
		{query("a.good.test", "8.1.1.1", 443, TCP), true},
		{query("a.good.test", "8.1.1.1", 8005, TCP), true},
		{query("a.good.test", "8.1.1.1", 80, TCP), false},
		{query("bad.good.test", "8.1.1.1", 443, TCP), false},
		{query("a.good.test", "10.0.0.1", 443, TCP), false},
		{query("a.good.test", "127.0.0.1", 443, TCP), false},
		{query("", "93.184.1.1", 22, TCP), true},
		{query("", "93.184.1.1", 853, TCP), false},
		{query("", "93.184.1.1", 443, UDP), false},
		{query("", "93.184.1.1", 0, ICMP), false},
		{query("", "10.1.2.3", 5432, TCP), true},
		{query("", "10.1.2.3", 22, TCP), false},
		{query("", "169.254.169.254", 80, TCP), false},
		{query("", "9.9.9.9", 853, UDP), true},
		{query("", "1.2.3.4", 0, ICMP), true},
		{query("", "1.2.3.4", 80, TCP), false},
		{query("", "::ffff:93.184.1.1", 22, TCP), true},
	} {
		if got := p.Decide(world, c.q); got.Allow != c.want {
			t.Errorf("%+v: %+v", c.q, got)
		}
	}
}

func TestDefaultAllowKeepsWhatIsClosedAndHidden(t *testing.T) {
	p := parse(t, `{"defaultAction":"allow","egress":[{"action":"deny","target":"evil.test"}]}`)
	for _, c := range []struct {
		q    Query
		want bool
	}{
		{query("a.test", "8.1.1.1", 443, TCP), true},
		{query("evil.test", "8.1.1.1", 443, TCP), false},
		{query("", "192.168.1.1", 80, TCP), false},
		{query("", "169.254.169.254", 80, TCP), false},
		{query("", "100.100.100.200", 80, TCP), false},
		{query("", "8.1.1.1", 443, UDP), false},
		{query("", "8.1.1.1", 853, TCP), false},
		{query("", "1.1.1.1", 443, TCP), false},
		{query("x.doh.test", "8.1.1.1", 443, TCP), false},
		{query("", "198.18.0.1", 443, TCP), true},
		{query("", "64:ff9b::808:808", 443, TCP), false},
	} {
		if got := p.Decide(world, c.q); got.Allow != c.want {
			t.Errorf("%+v: %+v", c.q, got)
		}
	}
}

func TestRulesOnRequests(t *testing.T) {
	p := parse(t, `{"egress":[{"action":"allow","target":"a.test","methods":["get"],"paths":["/simple/*","/x"]}]}`)
	for _, c := range []struct {
		request *Request
		want    bool
	}{
		{&Request{"GET", "/simple/a?x=1"}, true}, {&Request{"GET", "/x"}, true}, {&Request{"GET", "/xy"}, false},
		{&Request{"POST", "/x"}, false}, {nil, false},
	} {
		q := query("a.test", "8.1.1.1", 80, TCP)
		q.Request = c.request
		if got := p.Decide(world, q); got.Allow != c.want {
			t.Errorf("%+v: %+v", c.request, got)
		}
	}
	denying := parse(t, `{"defaultAction":"allow","egress":[{"action":"deny","target":"a.test","methods":["POST"]}]}`)
	if denying.Decide(world, query("a.test", "8.1.1.1", 443, TCP)).Allow {
		t.Error("what a denying rule cannot see into is allowed")
	}
}

func TestDatagramPorts(t *testing.T) {
	p := parse(t, `{"egress":[{"action":"deny","target":"8.0.0.0/8"},{"action":"allow","target":"ntp.test","protocols":["udp"],"ports":[123]},
		{"action":"allow","target":"any.test"}]}`)
	if all, ports := p.DatagramPorts(world, "ntp.test", netip.MustParseAddr("9.1.1.1")); all || len(ports) != 1 || ports[0] != 123 {
		t.Error(all, ports)
	}
	if all, _ := p.DatagramPorts(world, "any.test", netip.MustParseAddr("9.1.1.1")); !all {
		t.Error("closed")
	}
	for _, address := range []string{"8.1.1.1", "10.0.0.1"} {
		if all, ports := p.DatagramPorts(world, "any.test", netip.MustParseAddr(address)); all || len(ports) > 0 {
			t.Error(address, all, ports)
		}
	}
}

func TestMissingActionsDeny(t *testing.T) {
	p := parse(t, `{"egress":[{"target":"a.test"}]}`)
	if p.Default != Deny || p.Resolvable(world, "a.test").Allow {
		t.Error("allowed")
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{"a.test", "A.", "..", "xn--", "é.test", "1.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		canonical, err := Canonical(name)
		if err != nil {
			return
		}
		if again, err := Canonical(canonical); err != nil || again != canonical {
			t.Errorf("%q became %q, and then %q (%v)", name, canonical, again, err)
		}
	})
}
