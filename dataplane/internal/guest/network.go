// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// device is the machine's only network card.
const device = "eth0"

// addressBits is the size of the network that host and machine share.
const addressBits = 30

// configureNetwork gives the card its address, unless it has that. Taking it down first forgets routes and neighbours of
// an earlier life; sockets that listen on all addresses go on listening.
func configureNetwork(i identity) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	address, err := netip.ParseAddr(i.Address)
	if err != nil {
		return fmt.Errorf("the address of the network card: %w", err)
	}
	gateway, err := netip.ParseAddr(i.Gateway)
	if err != nil {
		return fmt.Errorf("the address of the gateway: %w", err)
	}
	card := card{socket, device}
	if card.isAt(address) {
		return nil // as it was rehearsed
	}
	if err := card.down(); err != nil {
		return err
	}
	if err := card.setMAC(i.MAC); err != nil {
		return err
	}
	if err := card.setAddress(address); err != nil {
		return err
	}
	if err := card.up(); err != nil {
		return err
	}
	loopback := card
	loopback.name = "lo"
	if err := loopback.up(); err != nil {
		return err
	}
	return addDefaultRoute(gateway)
}

// noIPv6 leaves ::1 only, since programs that listen on "localhost" may choose it.
func noIPv6() {
	for name, value := range map[string]string{"default": "1", "all": "1", "lo": "0"} {
		file := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
		// A kernel without IPv6 has no such file, and nothing to turn off.
		_ = os.WriteFile(file, []byte(value), 0)
	}
}

type card struct {
	socket int
	name   string
}

func (c card) flags(change func(uint16) uint16) error {
	request, err := unix.NewIfreq(c.name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(c.socket, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("look at the network card %s: %w", c.name, err)
	}
	request.SetUint16(change(request.Uint16()))
	if err := unix.IoctlIfreq(c.socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switch the network card %s: %w", c.name, err)
	}
	return nil
}

// isAt tells whether the card is up with this address. One that was never configured has none.
func (c card) isAt(address netip.Addr) bool {
	request, err := unix.NewIfreq(c.name)
	if err != nil || unix.IoctlIfreq(c.socket, unix.SIOCGIFADDR, request) != nil {
		return false
	}
	current, err := request.Inet4Addr()
	if err != nil || !bytes.Equal(current, address.AsSlice()) {
		return false
	}
	return unix.IoctlIfreq(c.socket, unix.SIOCGIFFLAGS, request) == nil && request.Uint16()&unix.IFF_UP != 0
}

func (c card) up() error {
	return c.flags(func(flags uint16) uint16 { return flags | unix.IFF_UP })
}

func (c card) down() error {
	return c.flags(func(flags uint16) uint16 { return flags &^ unix.IFF_UP })
}

func (c card) setAddress(address netip.Addr) error {
	if err := c.setInet(unix.SIOCSIFADDR, address.AsSlice()); err != nil {
		return fmt.Errorf("set the address %s: %w", address, err)
	}
	mask := net.CIDRMask(addressBits, 32)
	if err := c.setInet(unix.SIOCSIFNETMASK, mask); err != nil {
		return fmt.Errorf("set the network's size: %w", err)
	}
	return nil
}

func (c card) setInet(what uint, value []byte) error {
	request, err := unix.NewIfreq(c.name)
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(value); err != nil {
		return err
	}
	return unix.IoctlIfreq(c.socket, what, request)
}
