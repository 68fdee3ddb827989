// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package filter

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/egress/policy"
)

// Registers of 32 bits, from the first one on; the interface's name fills the first four.
const (
	regName    = 1
	regAddress = 12
	regPort    = 13
)

func ifname(name string) []byte {
	key := make([]byte, 16)
	copy(key, name)
	return key
}

// datagrams are the rules of one sandbox for everything that is forwarded: UDP and ICMP. A packet
// that reaches the end is denied by the chain from which it came.
func datagrams(p *policy.Policy, mark uint32, sets *sets) [][]expr.Any {
	accept := accepting(mark)
	rules := [][]expr.Any{
		join(ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), ctMark(mark), verdict(expr.VerdictAccept)),
		join(protocol(unix.IPPROTO_UDP), exceptPorts(sets), pair(), lookup(sets.udpAny, regName), accept),
		join(protocol(unix.IPPROTO_UDP), pair(), port(regPort), lookup(sets.udpPort, regName), accept),
	}
	for i := range p.Rules {
		rules = append(rules, addressRule(&p.Rules[i], sets, accept)...)
	}
	if p.Default == policy.Allow {
		open := join(daddr(regName), lookupNot(sets.closed, regName), notLocal())
		rules = append(rules,
			join(protocol(unix.IPPROTO_UDP), exceptPorts(sets), open, accept),
			join(protocol(unix.IPPROTO_ICMP), echoRequest(), open, accept))
	}
	return rules
}

// addressRule is one rule of the policy on an IPv4 address, as far as it concerns UDP and ICMP.
func addressRule(rule *policy.Rule, sets *sets, accept []expr.Any) [][]expr.Any {
	if rule.Name != "" || !rule.Prefix.Addr().Is4() || len(rule.Methods)+len(rule.Paths) > 0 {
		return nil
	}
	target := within(rule.Prefix)
	end := accept
	if rule.Action == policy.Deny {
		end = []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "denied"}}
	}
	named := func(p policy.Protocol) bool { return slices.Contains(rule.Protocols, p) }
	unnamed := len(rule.Protocols) == 0
	var rules [][]expr.Any
	if unnamed || named(policy.UDP) {
		rules = append(rules, udpRules(rule, sets, target, end)...)
	}
	if named(policy.ICMP) || unnamed && rule.Action == policy.Deny && len(rule.Ports) == 0 {
		rules = append(rules, join(protocol(unix.IPPROTO_ICMP), target, end))
	}
	return rules
}

func udpRules(rule *policy.Rule, sets *sets, target, end []expr.Any) [][]expr.Any {
	start := join(protocol(unix.IPPROTO_UDP), target)
	if len(rule.Ports) == 0 {
		if rule.Action == policy.Allow {
			return [][]expr.Any{join(start, exceptPorts(sets), end)}
		}
		return [][]expr.Any{join(start, end)}
	}
	var rules [][]expr.Any
	for _, ports := range rule.Ports {
		rules = append(rules, join(start, port(regName), between(ports), end))
	}
	return rules
}

func join(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func accepting(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: regName, Data: binaryutil.NativeEndian.PutUint32(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: regName, SourceRegister: true},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

func ctState(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regName},
		&expr.Bitwise{SourceRegister: regName, DestRegister: regName, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regName, Data: make([]byte, 4)},
	}
}

func ctMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: regName},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regName, Data: binaryutil.NativeEndian.PutUint32(mark)},
	}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regName},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regName, Data: []byte{number}},
	}
}

func isIPv4() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: regName},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regName, Data: []byte{unix.NFPROTO_IPV4}},
	}
}

func loadAddress(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
}

func daddr(register uint32) []expr.Any { return append(isIPv4(), loadAddress(register)) }

func within(prefix netip.Prefix) []expr.Any {
	if prefix.Bits() == 0 {
		return isIPv4()
	}
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-prefix.Bits()))
	return append(daddr(regName),
		&expr.Bitwise{SourceRegister: regName, DestRegister: regName, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regName, Data: prefix.Masked().Addr().AsSlice()})
}

func pair() []expr.Any {
	return append(isIPv4(), &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: regName}, loadAddress(regAddress))
}

func port(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func between(p policy.Ports) []expr.Any {
	return []expr.Any{&expr.Range{Op: expr.CmpOpEq, Register: regName,
		FromData: binaryutil.BigEndian.PutUint16(p.First), ToData: binaryutil.BigEndian.PutUint16(p.Last)}}
}

func lookup(set *nftables.Set, register uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID}}
}

func lookupNot(set *nftables.Set, register uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID, Invert: true}}
}

func exceptPorts(sets *sets) []expr.Any {
	return append(port(regName), lookupNot(sets.special, regName)...)
}

func notLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regName, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regName, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

func echoRequest() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: regName, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regName, Data: []byte{8}},
	}
}
