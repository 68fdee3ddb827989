// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package control

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/sandbox"
)

const testTime = 8 * time.Second

type question struct {
	URL    string `json:"url"`
	Method string `json:"method"`
}

type verdict struct {
	Allow     bool     `json:"allow"`
	Rule      string   `json:"rule"`
	Reason    string   `json:"reason"`
	Name      string   `json:"name,omitempty"`
	Port      uint16   `json:"port"`
	Protocol  string   `json:"protocol"`
	Addresses []string `json:"addresses,omitempty"`
}

// test answers what would become of a request, without making it. Only allowed names are looked up.
func (a *API) test(w http.ResponseWriter, r *http.Request) {
	found := a.find(w, r)
	if found == nil {
		return
	}
	var asked question
	if !read(w, r, &asked) {
		return
	}
	host, q, err := target(asked)
	if err != "" {
		http.Error(w, err, http.StatusBadRequest)
		return
	}
	answer(w, a.judge(r.Context(), found, host, q))
}

var ports = map[string]uint16{"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22, "git": 9418, "tcp": 0, "udp": 0, "icmp": 0}

func target(asked question) (string, policy.Query, string) {
	text := asked.URL
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" {
		return "", policy.Query{}, "write a URL, such as https://example.com/ or udp://192.0.2.1:123"
	}
	port, known := ports[parsed.Scheme]
	if !known {
		return "", policy.Query{}, "the scheme " + parsed.Scheme + " is not known"
	}
	if parsed.Port() != "" {
		number, err := strconv.ParseUint(parsed.Port(), 10, 16)
		if err != nil {
			return "", policy.Query{}, parsed.Port() + " is no port"
		}
		port = uint16(number)
	}
	q := policy.Query{Port: port, Protocol: policy.TCP}
	if parsed.Scheme == "udp" || parsed.Scheme == "icmp" {
		q.Protocol = policy.Protocol(parsed.Scheme)
	}
	if parsed.Scheme == "http" || parsed.Scheme == "ws" {
		q.Request = &policy.Request{Method: cmpOr(asked.Method, "GET"), Path: cmpOr(parsed.EscapedPath(), "/")}
	}
	return parsed.Hostname(), q, ""
}

func cmpOr(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (a *API) judge(ctx context.Context, box *sandbox.Sandbox, host string, q policy.Query) verdict {
	ctx, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	told := verdict{Port: q.Port, Protocol: string(q.Protocol)}
	finish := func(d policy.Decision) verdict {
		told.Allow, told.Rule, told.Reason = d.Allow, d.By, d.Reason
		return told
	}
	if address, err := netip.ParseAddr(host); err == nil {
		q.Address = address
		return finish(box.Decide(q))
	}
	name, err := policy.Canonical(host)
	if err != nil {
		return finish(policy.Decision{By: "names", Reason: err.Error()})
	}
	told.Name, q.Name = name, name
	if decided := box.Resolvable(name); !decided.Allow {
		return finish(decided)
	}
	addresses, _, err := a.resolver.Lookup(ctx, box.Policy(), name)
	if err != nil {
		return finish(policy.Decision{By: "upstream resolver", Reason: err.Error()})
	}
	if len(addresses) == 0 {
		return finish(policy.Decision{By: "upstream resolver", Reason: name + " has no address that may be reached"})
	}
	decided := policy.Decision{}
	for _, q.Address = range addresses {
		told.Addresses = append(told.Addresses, q.Address.String())
		if decided = box.Decide(q); !decided.Allow {
			break
		}
	}
	return finish(decided)
}
