// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rtEntry is struct rtentry of linux/route.h on 64-bit machines.
type rtEntry struct {
	_       uint64
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	genmask unix.RawSockaddrInet4
	flags   uint16
	_       int16
	_       uint64
	_       uintptr
	metric  int16
	dev     uintptr
	mtu     uint64
	window  uint64
	irtt    uint16
}

// route adds or removes the default route.
func (c card) route(change uint, gateway string) error {
	address, err := netip.ParseAddr(gateway)
	if err != nil {
		return fmt.Errorf("the address of the gateway: %w", err)
	}
	route := rtEntry{flags: unix.RTF_UP | unix.RTF_GATEWAY}
	route.dst.Family, route.genmask.Family, route.gateway.Family = unix.AF_INET, unix.AF_INET, unix.AF_INET
	route.gateway.Addr = address.As4()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.socket), uintptr(change), uintptr(unsafe.Pointer(&route)))
	if errno != 0 {
		return fmt.Errorf("route through %s: %w", gateway, errno)
	}
	return nil
}

// macRequest is struct ifreq with a hardware address.
type macRequest struct {
	name    [unix.IFNAMSIZ]byte
	address unix.RawSockaddr
	_       [8]byte
}

func (c card) setMAC(text string) error {
	if text == "" {
		return nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return err
	}
	request := macRequest{}
	copy(request.name[:], c.name)
	request.address.Family = unix.ARPHRD_ETHER
	for i, b := range mac {
		request.address.Data[i] = int8(b)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.socket), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("set the hardware address %s: %w", text, errno)
	}
	return nil
}
