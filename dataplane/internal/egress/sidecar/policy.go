// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package sidecar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const maxRules = 4096

// Rule is one line of a policy as clients write it.
type Rule struct {
	Action    string            `json:"action"`
	Target    string            `json:"target"`
	Ports     []json.RawMessage `json:"ports,omitempty"`
	Protocols []string          `json:"protocols,omitempty"`
	Methods   []string          `json:"methods,omitempty"`
	Paths     []string          `json:"paths,omitempty"`
}

// Policy is what holds, as clients write it and are told it.
type Policy struct {
	Default string `json:"defaultAction"`
	Egress  []Rule `json:"egress"`
}

var errTooMany = fmt.Errorf("a policy has at most %d rules", maxRules)

// parse reads a policy; nothing, null and {} deny everything.
func parse(data []byte) (Policy, error) {
	p := Policy{}
	if data = bytes.TrimSpace(data); len(data) > 0 {
		if err := strictly(data, &p); err != nil {
			return p, err
		}
	}
	if p.Egress == nil {
		p.Egress = []Rule{}
	}
	p.Default = spelled(p.Default)
	for i := range p.Egress {
		p.Egress[i].settle()
	}
	return p, p.check()
}

func parseRules(data []byte) ([]Rule, error) {
	var rules []Rule
	if err := strictly(data, &rules); err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, errors.New("give at least one rule")
	}
	for i := range rules {
		rules[i].settle()
	}
	return rules, nil
}

func parseTargets(data []byte) ([]string, error) {
	var targets []string
	if err := strictly(data, &targets); err != nil {
		return nil, err
	}
	if len(targets) == 0 {
		return nil, errors.New("give the targets to remove as a list that is not empty")
	}
	return targets, nil
}

func strictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the body is not understood: %w", err)
	}
	if decoder.More() {
		return errors.New("the body goes on after its end")
	}
	return nil
}

// spelled is an action in its one form; what is missing denies.
func spelled(action string) string {
	if action == "" {
		return "deny"
	}
	return strings.ToLower(action)
}

func (r *Rule) settle() {
	r.Action, r.Target = spelled(r.Action), strings.TrimSpace(r.Target)
}

func (p Policy) check() error {
	if len(p.Egress) > maxRules {
		return errTooMany
	}
	return nil
}

func (p Policy) mode() string {
	if len(p.Egress) > 0 {
		return "enforcing"
	}
	return p.Default + "_all"
}

func canonical(target string) string {
	return strings.TrimSuffix(strings.ToLower(strings.TrimSpace(target)), ".")
}

// merged has the rules first, each target's first one only, then what they do not override.
func (p Policy) merged(rules []Rule) (Policy, error) {
	named := map[string]bool{}
	var all []Rule
	for _, rule := range rules {
		if target := canonical(rule.Target); !named[target] {
			named[target] = true
			all = append(all, rule)
		}
	}
	for _, rule := range p.Egress {
		if !named[canonical(rule.Target)] {
			all = append(all, rule)
		}
	}
	p.Egress = all
	return p, p.check()
}

// without lacks the rules on some targets, and tells whether there were any.
func (p Policy) without(targets []string) (Policy, bool) {
	unwanted := map[string]bool{}
	for _, target := range targets {
		unwanted[canonical(target)] = true
	}
	kept := []Rule{}
	for _, rule := range p.Egress {
		if !unwanted[canonical(rule.Target)] {
			kept = append(kept, rule)
		}
	}
	changed := len(kept) != len(p.Egress)
	p.Egress = kept
	return p, changed
}
