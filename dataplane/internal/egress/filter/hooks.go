// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

// hostHooks are for sandboxes behind interfaces of this namespace.
const hostHooks = `
add chain inet {{.Table}} guard { type filter hook prerouting priority raw; policy accept; }
add chain inet {{.Table}} to_entry
add chain inet {{.Table}} flooded
add chain inet {{.Table}} entry { type nat hook prerouting priority dstnat; policy accept; }
add chain inet {{.Table}} input { type filter hook input priority filter - 5; policy accept; }
add chain inet {{.Table}} from_policed
add chain inet {{.Table}} denied
add chain inet {{.Table}} forward { type filter hook forward priority filter - 5; policy accept; }
flush chain inet {{.Table}} guard
flush chain inet {{.Table}} to_entry
flush chain inet {{.Table}} flooded
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
    ip option lsrr exists drop
    ip option ssrr exists drop
    iifname . ip saddr @bound accept
    {{.Log "spoofed"}}
    drop
  }
  chain to_entry {
    ct mark set {{.Tag}} meta l4proto tcp redirect to :{{.EntryPort}}
  }
  chain flooded {
    {{.Log "flows"}}
    drop
  }
  chain entry {
    iifname != @policed accept
    add @flows { iifname ct count over {{.Flows}} } goto flooded
    meta l4proto { tcp, udp } th dport 53 ct mark set {{.Tag}} redirect to :{{.DNSPort}}
    meta l4proto != tcp accept
    tcp dport 18080 fib daddr . iif type local goto to_entry
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
`

// sharedHooks are for the one sandbox that shares this namespace: its packets begin here, and so have
// no interface to come from, which the filter takes for one without a name. What this process sends
// by itself bears a mark. Questions are led away before an engine's own resolver on loopback gets them.
const sharedHooks = `
add chain inet {{.Table}} to_entry
add chain inet {{.Table}} entry { type nat hook output priority -105; policy accept; }
add chain inet {{.Table}} input { type filter hook input priority filter - 5; policy accept; }
add chain inet {{.Table}} from_policed
add chain inet {{.Table}} denied
add chain inet {{.Table}} output { type filter hook output priority filter - 5; policy accept; }
flush chain inet {{.Table}} to_entry
flush chain inet {{.Table}} entry
flush chain inet {{.Table}} input
flush chain inet {{.Table}} from_policed
flush chain inet {{.Table}} denied
flush chain inet {{.Table}} output
table inet {{.Table}} {
  chain to_entry {
    ct mark set {{.Tag}} meta l4proto tcp redirect to :{{.EntryPort}}
  }
  chain entry {
    meta mark {{.OwnMark}} accept
    meta l4proto { tcp, udp } th dport 53 ct mark set {{.Tag}} redirect to :{{.DNSPort}}
    oifname "lo" accept
    meta l4proto != tcp accept
    iifname . ip daddr @learned goto to_entry
    iifname vmap @named
    iifname @open ip daddr != @closed fib daddr type != local goto to_entry
  }
  chain input {
    iifname != "lo" tcp dport { {{.EntryPort}}, {{.DNSPort}} } drop
    iifname != "lo" udp dport {{.DNSPort}} drop
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
  chain output {
    meta mark {{.OwnMark}} accept
    oifname "lo" accept
    ct mark {{.Tag}} accept
    ct direction reply ct state established,related accept
    meta nfproto ipv6 {{.Log "ipv6"}}
    meta nfproto ipv6 drop
    ip daddr 224.0.0.0/4 {{.Log "multicast"}}
    ip daddr 224.0.0.0/4 drop
    fib saddr type != local {{.Log "spoofed"}}
    fib saddr type != local drop
    goto from_policed
  }
}
`
