// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"slices"
	"strings"

	"casulo.dev/dataplane/internal/environment"
)

// secretWords mark variables that the strict profile keeps back unless a request allows them by name.
var secretWords = []string{
	"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY",
	"PRIVATE_KEY", "AUTHORIZATION", "COOKIE", "DSN", "DATABASE_URL", "CONNECTION_STRING",
}

// essential variables are passed on even where only named ones are allowed: nothing runs without them.
var essential = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "TZ"}

// passOn chooses which of the sandbox's variables a session gets.
func (s *settings) passOn(all environment.Variables) environment.Variables {
	chosen := environment.Variables{}
	for name, value := range all {
		if s.passes(name) {
			chosen[name] = value
		}
	}
	return chosen
}

func (s *settings) passes(name string) bool {
	if s.Env == nil {
		return s.Profile == profileBalanced || !looksSecret(name)
	}
	named := slices.Contains(s.Env.Keys, name)
	if s.Env.Mode == envAllow {
		return named || slices.Contains(essential, name)
	}
	return !named && (s.Profile == profileBalanced || !looksSecret(name))
}

func looksSecret(name string) bool {
	upper := strings.ToUpper(name)
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(upper, word) })
}
