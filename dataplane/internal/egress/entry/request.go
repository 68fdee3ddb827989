// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"casulo.dev/dataplane/internal/egress/policy"
)

// request is what a policy looks at in a message, and what passing it on needs.
type request struct {
	*message
	method, target string
	name           string // canonical; "" when the client named an address or nothing
	path           string
	length         int64
	upgrade        bool // to something that is not HTTP
	out            []byte
}

var errHTTP2 = errors.New("HTTP/2 without TLS is not looked into")

func parseRequest(m *message) (*request, error) {
	parts := strings.Split(m.start, " ")
	if len(parts) != 3 || parts[0] == "" || strings.Trim(parts[0], tokenChars) != "" || parts[1] == "" {
		return nil, fmt.Errorf("%.60q is no request", m.start)
	}
	r := &request{message: m, method: parts[0], target: parts[1], out: m.raw}
	switch parts[2] {
	case "HTTP/1.1", "HTTP/1.0":
	case "HTTP/2.0":
		return nil, errHTTP2
	default:
		return nil, fmt.Errorf("the version %.20q is not understood", parts[2])
	}
	var err error
	if r.length, err = m.body(0); err != nil {
		return nil, err
	}
	if parts[2] == "HTTP/1.0" && r.length < 0 {
		return nil, errors.New("HTTP/1.0 knows no chunks")
	}
	if err := r.readAuthority(parts[2]); err != nil {
		return nil, err
	}
	r.readUpgrade()
	return r, nil
}

// readAuthority finds the one host that the request names, in Host and perhaps in the target.
func (r *request) readAuthority(version string) error {
	hosts := r.values("host")
	if len(hosts) > 1 || len(hosts) == 0 && version == "HTTP/1.1" {
		return fmt.Errorf("the request has %d Host headers", len(hosts))
	}
	host := ""
	if len(hosts) == 1 {
		host = hosts[0]
	}
	switch {
	case r.method == "CONNECT":
		return errors.New("the entry is no proxy for CONNECT")
	case strings.HasPrefix(r.target, "/"):
		r.path = r.target
	case r.target == "*":
		r.path = "*"
	default:
		absolute, err := url.Parse(r.target)
		if err != nil || !strings.EqualFold(absolute.Scheme, "http") || absolute.User != nil {
			return fmt.Errorf("the target %.60q is not understood", r.target)
		}
		if len(hosts) == 1 && !strings.EqualFold(withoutPort(absolute.Host), withoutPort(host)) {
			return fmt.Errorf("the target names %q and Host names %q", absolute.Host, host)
		}
		host, r.path = absolute.Host, absolute.RequestURI()
	}
	return r.setName(host)
}

func (r *request) setName(host string) error {
	name := withoutPort(host)
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil || name == "" {
		return nil
	}
	canonical, err := policy.Canonical(name)
	if err != nil || !isPlain(name) {
		return fmt.Errorf("%.60q is no host", host)
	}
	r.name = canonical
	return nil
}

func isPlain(name string) bool {
	return strings.IndexFunc(name, func(c rune) bool { return c >= 0x80 }) < 0
}

// withoutPort leaves alone what has something else than a number behind its colon.
func withoutPort(host string) string {
	if name, port, err := net.SplitHostPort(host); err == nil && strings.Trim(port, "0123456789") == "" {
		return name
	}
	return host
}

// readUpgrade takes back an offer of HTTP/2, which could not be looked into, and notes others.
func (r *request) readUpgrade() {
	words := r.tokens("upgrade")
	if len(words) == 0 {
		return
	}
	for _, word := range words {
		if word == "h2c" || strings.HasPrefix(word, "http/") {
			r.out = r.without([]string{"upgrade", "http2-settings"}, "upgrade")
			return
		}
	}
	r.upgrade = true
}

var escapesPlain = regexp.MustCompile(`%(2[dDeEfF]|5[cCfF]|7[eE]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|25)`)

// isNormal tells whether a path can be compared with a pattern: nothing in it means the same as
// something else.
func isNormal(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	if strings.Contains(path, "//") || strings.ContainsAny(path, "\\;") || escapesPlain.MatchString(path) {
		return false
	}
	for _, segment := range strings.Split(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}
