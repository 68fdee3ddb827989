// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// device is the machine's only network card.
const device = "eth0"

// discardPort is where knock looks for the host, and knockLimit how long.
const (
	discardPort = "9"
	knockLimit  = 200 * time.Millisecond
)

// addressBits is the size of the network that host and machine share.
const addressBits = 30

// awaken switches network cards on. They have no address yet, which spares every machine made from this one
// the time.
func awaken(names ...string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for _, name := range names {
		if err := (card{socket, name}).up(); err != nil {
			return err
		}
	}
	return nil
}

// configureNetwork gives the card its address instead of the last one. A new hardware address has the kernel
// forget the neighbours of an earlier life; sockets that listen on all addresses go on listening.
func configureNetwork(next, last identity) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	address, err := netip.ParseAddr(next.Address)
	if err != nil {
		return fmt.Errorf("the address of the network card: %w", err)
	}
	card := card{socket, device}
	if last.Gateway != "" {
		if err := card.route(unix.SIOCDELRT, last.Gateway); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	if err := card.setMAC(next.MAC); err != nil {
		return err
	}
	if err := card.setAddress(address); err != nil {
		return err
	}
	if err := card.up(); err != nil { // somebody inside may have switched it off
		return err
	}
	return card.route(unix.SIOCADDRT, next.Gateway)
}

// noIPv6 leaves ::1 only, since programs that listen on "localhost" may choose it.
func noIPv6() {
	for name, value := range map[string]string{"default": "1", "all": "1", "lo": "0"} {
		file := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
		// A kernel without IPv6 has no such file, and nothing to turn off.
		_ = os.WriteFile(file, []byte(value), 0)
	}
}

// knock sends a packet over the network card. It does not matter whether anybody answers.
func knock(gateway string) {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(gateway, discardPort), knockLimit)
	if err == nil {
		connection.Close()
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

func (c card) up() error {
	return c.flags(func(flags uint16) uint16 { return flags | unix.IFF_UP })
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
