// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"

	"casulo.dev/dataplane/internal/egress/own"
)

const (
	attemptTime  = 2 * time.Second
	totalTime    = 5 * time.Second
	upstreamSize = 1232
)

// Upstream asks the host's own resolvers.
type Upstream struct {
	servers []string
	udp     *dns.Client
	tcp     *dns.Client
}

// NewUpstream asks servers, each "address" or "address:port", in order.
func NewUpstream(servers []string) *Upstream {
	u := &Upstream{
		udp: &dns.Client{Net: "udp", Timeout: attemptTime, UDPSize: upstreamSize},
		tcp: &dns.Client{Net: "tcp", Timeout: attemptTime},
	}
	for _, server := range servers {
		if _, _, err := net.SplitHostPort(server); err != nil {
			server = net.JoinHostPort(server, "53")
		}
		u.servers = append(u.servers, server)
	}
	return u
}

// Through lets the sockets for its questions be prepared.
func (u *Upstream) Through(control own.Control) {
	for _, client := range []*dns.Client{u.udp, u.tcp} {
		client.Dialer = &net.Dialer{Timeout: attemptTime, Control: control}
	}
}

var errNoServers = errors.New("this host has no resolver; set [egress] resolvers")

// Ask sends one question and returns the whole answer, over TCP when it is too long for UDP.
func (u *Upstream) Ask(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	question.SetEdns0(upstreamSize, false)
	ctx, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()
	err := errNoServers
	for round := 0; round < 2 && ctx.Err() == nil; round++ {
		for _, server := range u.servers {
			var answer *dns.Msg
			if answer, err = u.exchange(ctx, question, server); err == nil && answer.Rcode != dns.RcodeServerFailure {
				return answer, nil
			} else if err == nil {
				err = fmt.Errorf("%s failed to answer", server)
			}
		}
	}
	return nil, err
}

func (u *Upstream) exchange(ctx context.Context, question *dns.Msg, server string) (*dns.Msg, error) {
	question.Id = dns.Id()
	answer, _, err := u.udp.ExchangeContext(ctx, question, server)
	if err == nil && answer.Truncated {
		answer, _, err = u.tcp.ExchangeContext(ctx, question, server)
	}
	if err != nil {
		return nil, err
	}
	if len(answer.Question) != 1 || !sameQuestion(answer.Question[0], question.Question[0]) {
		return nil, fmt.Errorf("%s answered another question", server)
	}
	return answer, nil
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && dns.CanonicalName(a.Name) == dns.CanonicalName(b.Name)
}
