// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"text/template"

	"casulo.dev/dataplane/internal/egress/policy"
)

// Marks of connections: the high bits say that this table has judged the connection, the low ones by
// which version of which policy. Zero is a connection that goes to the entry or to the name server.
const (
	MarkTag  = 0xca500000
	MarkMask = 0xfff00000
)

// base is the part of the table that is the same for all sandboxes. Loading it again replaces the
// rules and keeps what is in the sets, in one transaction.
var base = template.Must(template.New("base").Parse(`
add table inet {{.Table}}
add set inet {{.Table}} policed { type ifname; }
add set inet {{.Table}} bound { type ifname . ipv4_addr; }
add set inet {{.Table}} open { type ifname; }
add set inet {{.Table}} learned { type ifname . ipv4_addr; flags timeout; size {{.Size}}; }
add set inet {{.Table}} udp_any { type ifname . ipv4_addr; flags timeout; size {{.Size}}; }
add set inet {{.Table}} udp_port { type ifname . ipv4_addr . inet_service; flags timeout; size {{.Size}}; }
add set inet {{.Table}} closed { type ipv4_addr; flags interval; }
add set inet {{.Table}} special { type inet_service; }
add element inet {{.Table}} special { 53, 80, 443, 853 }
add set inet {{.Table}} logged { type ifname; flags dynamic; size 65536; }
add map inet {{.Table}} sandboxes { type ifname : verdict; }
add map inet {{.Table}} named { type ifname : verdict; }
flush set inet {{.Table}} closed
add element inet {{.Table}} closed { {{.Closed}} }
add chain inet {{.Table}} guard { type filter hook prerouting priority raw; policy accept; }
add chain inet {{.Table}} to_entry
add chain inet {{.Table}} entry { type nat hook prerouting priority dstnat; policy accept; }
add chain inet {{.Table}} input { type filter hook input priority filter - 5; policy accept; }
add chain inet {{.Table}} from_policed
add chain inet {{.Table}} denied
add chain inet {{.Table}} forward { type filter hook forward priority filter - 5; policy accept; }
flush chain inet {{.Table}} guard
flush chain inet {{.Table}} to_entry
flush chain inet {{.Table}} entry
flush chain inet {{.Table}} input
flush chain inet {{.Table}} from_policed
flush chain inet {{.Table}} denied
flush chain inet {{.Table}} forward
table inet {{.Table}} {
  chain guard {
    iifname != @policed accept
    meta nfproto ipv6 {{.Log "ipv6"}}
    meta nfproto ipv6 drop
    ip daddr 224.0.0.0/4 {{.Log "multicast"}}
    ip daddr 224.0.0.0/4 drop
    iifname . ip saddr @bound accept
    {{.Log "spoofed"}}
    drop
  }
  chain to_entry {
    ct mark set {{.Tag}} meta l4proto tcp redirect to :{{.EntryPort}}
  }
  chain entry {
    iifname != @policed accept
    meta l4proto { tcp, udp } th dport 53 ct mark set {{.Tag}} redirect to :{{.DNSPort}}
    meta l4proto != tcp accept
    iifname . ip daddr @learned goto to_entry
    iifname vmap @named
    iifname @open ip daddr != @closed fib daddr type != local goto to_entry
  }
  chain input {
    iifname != @policed tcp dport { {{.EntryPort}}, {{.DNSPort}} } drop
    iifname != @policed udp dport {{.DNSPort}} drop
    iifname != @policed accept
    ct state established,related accept
    ct mark {{.Tag}} accept
    {{.Log "host"}}
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain from_policed {
    meta l4proto tcp {{.Log "tcp"}}
    meta l4proto tcp reject with tcp reset
    iifname vmap @sandboxes
    goto denied
  }
  chain denied {
    {{.Log "default"}}
    reject with icmpx admin-prohibited
  }
  chain forward {
    iifname @policed goto from_policed
  }
}
`))

// Config names the table and the places to which it leads.
type Config struct {
	Table     string
	Group     int // of the packet log
	EntryPort int
	DNSPort   int
	Size      int // of each set of learned addresses
	World     *policy.World
}

// Tag is the mark in nft's spelling.
func (c *Config) Tag() string { return fmt.Sprintf("0x%08x", uint32(MarkTag)) }

// Log is a statement that reports a packet, at a bounded rate for each sandbox.
func (c *Config) Log(prefix string) string {
	return fmt.Sprintf("update @logged { iifname limit rate 20/second burst 100 packets } "+
		"log prefix %q group %d snaplen 64", prefix, c.Group)
}

// Closed lists the closed IPv4 networks without the exceptions.
func (c *Config) Closed() string {
	ranges := spansOf(c.World.Closed)
	for _, public := range c.World.Public {
		ranges = without(ranges, spanOf(public))
	}
	var texts []string
	for _, each := range ranges {
		texts = append(texts, fmt.Sprintf("%s-%s", each.firstAddr(), each.lastAddr()))
	}
	return strings.Join(texts, ", ")
}

func (c *Config) text() (string, error) {
	var out bytes.Buffer
	err := base.Execute(&out, c)
	return out.String(), err
}

// load runs nft once; every later change goes through netlink.
func (c *Config) load() error {
	text, err := c.text()
	if err != nil {
		return err
	}
	return nft(text)
}

func nft(script string) error {
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(script)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nft refused the table: %w: %s", err, bytes.TrimSpace(output))
	}
	return nil
}

func v4Only(prefixes []netip.Prefix) []netip.Prefix {
	var kept []netip.Prefix
	for _, prefix := range prefixes {
		if prefix.Addr().Is4() {
			kept = append(kept, prefix)
		}
	}
	return kept
}
