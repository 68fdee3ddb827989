// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"net"
	"net/http"
	"strings"

	"casulo.dev/dataplane/internal/api"
)

// hopByHop headers are about one connection and end there.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// credentials of our own planes are none of the application's business.
var credentials = []string{"Open-Sandbox-Api-Key", "Opensandbox-Secure-Access", "Opensandbox-Access-Renew"}

// requestHeader is what the application gets to see.
func (s *Service) requestHeader(r *http.Request, to target) http.Header {
	header := r.Header.Clone()
	wantsTrailers := hasToken(header["Te"], "trailers")
	upgrade := header.Get("Upgrade")
	dropHopByHop(header)
	for _, name := range credentials {
		header.Del(name)
	}
	if !s.ownPorts[to.port] {
		header.Del(api.TokenHeader)
	}
	if wantsTrailers {
		header.Set("Te", "trailers")
	}
	if isUpgrade(r) {
		header.Set("Connection", "Upgrade")
		header.Set("Upgrade", upgrade)
	}
	if _, present := header["User-Agent"]; !present {
		header["User-Agent"] = nil // keeps the transport from adding its own
	}
	forwarded(header, r)
	return header
}

// forwarded tells who is calling, unless a proxy before us has said so.
func forwarded(header http.Header, r *http.Request) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = "" // a unix socket has no address to name
	}
	for name, value := range map[string]string{
		"X-Forwarded-Host": r.Host, "X-Forwarded-Proto": scheme, "X-Forwarded-For": address,
	} {
		if _, present := header[name]; !present && value != "" {
			header.Set(name, value)
		}
	}
}

// dropHopByHop also takes out what Connection names.
func dropHopByHop(header http.Header) {
	for _, line := range header["Connection"] {
		for _, name := range strings.Split(line, ",") {
			if name = strings.TrimSpace(name); name != "" {
				header.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		header.Del(name)
	}
}

func isUpgrade(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" && hasToken(r.Header["Connection"], "upgrade")
}

func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for _, word := range strings.Split(line, ",") {
			if strings.EqualFold(strings.TrimSpace(word), token) {
				return true
			}
		}
	}
	return false
}

// responseHeader copies the application's header to the caller.
func responseHeader(to http.Header, from *http.Response, where target) {
	dropHopByHop(from.Header)
	for name, values := range from.Header {
		to[name] = values
	}
	if _, present := from.Header["Content-Type"]; !present {
		to["Content-Type"] = nil // keeps the server from guessing one
	}
	if location, found := strings.CutPrefix(from.Header.Get("Location"), "http://"+where.host); found {
		switch {
		case location == "":
			to.Set("Location", "/")
		case location[0] == '/' && !strings.HasPrefix(location, "//"):
			to.Set("Location", location)
		}
	}
	for name := range from.Trailer {
		to.Add("Trailer", name)
	}
}
