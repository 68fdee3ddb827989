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
var base = template.Must(template.New("base").Parse(`{{define "hooks"}}{{if .Own}}` + sharedHooks +
	`{{else}}` + hostHooks + `{{end}}{{end}}
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
add set inet {{.Table}} flows { type ifname; flags dynamic; size 65536; }
add map inet {{.Table}} sandboxes { type ifname : verdict; }
add map inet {{.Table}} named { type ifname : verdict; }
flush set inet {{.Table}} closed
add element inet {{.Table}} closed { {{.Closed}} }
{{template "hooks" .}}`))

// Config names the table and the places to which it leads.
type Config struct {
	Table     string
	Group     int // of the packet log
	EntryPort int
	DNSPort   int
	Size      int    // of each set of learned addresses
	Flows     int    // that the kernel follows at once for one sandbox, of any protocol
	Own       uint32 // mark of this process's own packets, where it shares the sandbox's namespace
	World     *policy.World
}

// OwnMark is the mark of this process's own packets, in nft's spelling.
func (c *Config) OwnMark() string { return fmt.Sprintf("0x%08x", c.Own) }

// hooks are the chains through which every packet has to come.
func (c *Config) hooks() []string {
	if c.Own != 0 {
		return []string{"entry", "input", "output"}
	}
	return []string{"guard", "entry", "input", "forward"}
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
