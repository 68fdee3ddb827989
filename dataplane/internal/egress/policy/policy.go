// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package policy decides what a sandbox may reach. It is pure: a policy is parsed once, is never
// changed afterwards, and answers questions about names, addresses, ports and requests.
package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Action is what a rule does with what it matches.
type Action string

// The two actions.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// Protocol is a transport protocol that a rule can name.
type Protocol string

// The protocols that ever leave a sandbox.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
)

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// Rule is one line of a policy.
type Rule struct {
	Action    Action
	Target    string // as it was written
	Name      string // lower case, without the wildcard's star; "" when the target is an address
	Wildcard  bool
	Prefix    netip.Prefix
	Ports     []Ports
	Protocols []Protocol
	Methods   []string
	Paths     []string
}

// Policy is an ordered list of rules with a default.
type Policy struct {
	Default Action
	Rules   []Rule
}

type wireRule struct {
	Action    Action            `json:"action"`
	Target    string            `json:"target"`
	Ports     []json.RawMessage `json:"ports,omitempty"`
	Protocols []Protocol        `json:"protocols,omitempty"`
	Methods   []string          `json:"methods,omitempty"`
	Paths     []string          `json:"paths,omitempty"`
}

type wirePolicy struct {
	Default Action     `json:"defaultAction"`
	Egress  []wireRule `json:"egress"`
}

// Parse reads the wire form. A missing default or action denies.
func Parse(data []byte) (*Policy, error) {
	var wire wirePolicy
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, err
	}
	parsed := &Policy{Default: wire.Default}
	if err := checkAction(&parsed.Default); err != nil {
		return nil, err
	}
	for i, each := range wire.Egress {
		rule, err := parseRule(each)
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		parsed.Rules = append(parsed.Rules, rule)
	}
	return parsed, nil
}

func checkAction(action *Action) error {
	switch *action {
	case "":
		*action = Deny
	case Allow, Deny:
	default:
		return fmt.Errorf("%q is neither allow nor deny", *action)
	}
	return nil
}

func parseRule(wire wireRule) (Rule, error) {
	rule := Rule{Action: wire.Action, Target: wire.Target, Methods: wire.Methods, Paths: wire.Paths}
	if err := checkAction(&rule.Action); err != nil {
		return rule, err
	}
	for _, protocol := range wire.Protocols {
		if protocol != TCP && protocol != UDP && protocol != ICMP {
			return rule, fmt.Errorf("unknown protocol %q", protocol)
		}
	}
	rule.Protocols = wire.Protocols
	for _, raw := range wire.Ports {
		ports, err := parsePorts(strings.Trim(string(raw), `"`))
		if err != nil {
			return rule, err
		}
		rule.Ports = append(rule.Ports, ports)
	}
	return rule, rule.parseTarget()
}

func (r *Rule) parseTarget() error {
	if address, err := netip.ParseAddr(r.Target); err == nil {
		r.Prefix = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen())
		return nil
	}
	if prefix, err := netip.ParsePrefix(r.Target); err == nil {
		r.Prefix = prefix.Masked()
		return nil
	}
	name, wildcard := strings.CutPrefix(r.Target, "*.")
	canonical, err := Canonical(name)
	if err != nil {
		return err
	}
	r.Name, r.Wildcard = canonical, wildcard
	return nil
}

func parsePorts(text string) (Ports, error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 16)
	if err != nil || first == 0 {
		return Ports{}, fmt.Errorf("%q is no port", text)
	}
	last, err := strconv.ParseUint(high, 10, 16)
	if err != nil || last < first {
		return Ports{}, fmt.Errorf("%q is no range of ports", text)
	}
	return Ports{uint16(first), uint16(last)}, nil
}

// String is the rule as decisions name it.
func (r *Rule) String() string {
	text := string(r.Action) + " " + r.Target
	for _, ports := range r.Ports {
		text += ":" + strconv.Itoa(int(ports.First))
		if ports.Last != ports.First {
			text += "-" + strconv.Itoa(int(ports.Last))
		}
	}
	if len(r.Protocols) > 0 {
		text += fmt.Sprintf(" %v", r.Protocols)
	}
	if len(r.Methods)+len(r.Paths) > 0 {
		text += fmt.Sprintf(" %v %v", r.Methods, r.Paths)
	}
	return text
}
