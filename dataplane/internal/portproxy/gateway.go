// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package portproxy

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// policyPort is where the policy API is found: on loopback beside a sidecar, else at the gateway, where
// the host answers for it.
const policyPort = "18080"

const routes = "/proc/net/route"

// gateway is where the default route leads; empty when there is none.
func gateway() string {
	content, err := os.ReadFile(routes)
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(content), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "00000000" {
			continue
		}
		if number, err := strconv.ParseUint(fields[2], 16, 32); err == nil {
			var address [4]byte // the number is how this machine reads the four bytes
			binary.NativeEndian.PutUint32(address[:], uint32(number))
			return netip.AddrFrom4(address).String()
		}
	}
	return ""
}
