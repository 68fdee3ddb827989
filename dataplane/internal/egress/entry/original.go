// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package entry

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const soOriginalDestination = 80

// original is where a redirected connection was going before the packet filter led it here.
func original(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var found *unix.IPv6Mreq // as long as a socket address, and x/sys can fetch it
	var failed error
	if err := raw.Control(func(fd uintptr) {
		found, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, soOriginalDestination)
	}); err != nil {
		return netip.AddrPort{}, err
	}
	if failed != nil {
		return netip.AddrPort{}, fmt.Errorf("SO_ORIGINAL_DST: %w", failed)
	}
	port := binary.BigEndian.Uint16(found.Multiaddr[2:4])
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(found.Multiaddr[4:8])), port), nil
}
