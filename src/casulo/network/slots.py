# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Slots: a network namespace with one veth pair and one address, made ahead of its sandbox.

Making one costs more than starting a container, so a few are always ready. Slot `n` of a server
owns the n-th /30 of the network; its names are derived from `n`, so that a later process finds
and removes what an earlier one left. A slot is used by one sandbox and never again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from casulo import linux
from casulo.model.errors import Code, Unavailable
from casulo.network.rtnetlink import Links

GUEST_INTERFACE = "eth0"
_LOOPBACK = 1
_PREFIX = 30


@dataclass(frozen=True)
class Slot:
    """One address pair: `gateway` on the host's side, `address` inside the sandbox."""

    index: int
    interface: str
    namespace: Path
    gateway: IPv4Address
    address: IPv4Address


@dataclass(frozen=True)
class Plan:
    """How slots of one server are named. `prefix` starts every interface name.

    `lock` is a file that all servers of the machine share: they may have been given one network.
    """

    network: IPv4Network
    prefix: str
    folder: Path
    lock: Path

    @property
    def capacity(self) -> int:
        """Number of slots that the network has room for."""
        return 1 << (30 - self.network.prefixlen)

    def slot(self, index: int) -> Slot:
        """The names and addresses of slot `index`."""
        base = int(self.network.network_address) + 4 * index
        return Slot(
            index=index,
            interface=f"{self.prefix}{index:x}",
            namespace=self.folder / f"{index:x}",
            gateway=IPv4Address(base + 1),
            address=IPv4Address(base + 2),
        )


@dataclass(frozen=True)
class Maker:
    """How slots of one kind are made and removed. Both block; removing is idempotent."""

    build: Callable[[Slot], None]
    destroy: Callable[[Slot], None]


class Slots:
    """All slots of one server. Methods block; call them from worker threads."""

    def __init__(self, plan: Plan, maker: Maker | None = None) -> None:
        self._plan = plan
        self._maker = maker or Maker(build, destroy)
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._ready: list[Slot] = []
        # Servers that share a network begin at different places and so rarely meet.
        self._next = zlib.crc32(plan.prefix.encode()) % plan.capacity

    @property
    def ready(self) -> int:
        """Number of prepared slots."""
        return len(self._ready)

    def at(self, index: int) -> Slot:
        """The names and addresses of slot `index`."""
        return self._plan.slot(index)

    def renew(self, index: int) -> bool:
        """Make a taken slot again if the machine has lost it, as with a reboot; whether it had."""
        slot = self._plan.slot(index)
        if slot.interface in interfaces(slot.interface) and slot.namespace.exists():
            return False
        self._maker.build(slot)
        return True

    def restore(self, indexes: set[int]) -> None:
        """Keep the slots of living sandboxes and remove every other trace of an earlier server."""
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        self._taken |= indexes
        for path in self._plan.folder.iterdir():
            index = int(path.name, 16)
            if index not in indexes:
                self._maker.destroy(self._plan.slot(index))
        kept = {self._plan.slot(index).interface for index in indexes}
        for name in interfaces(self._plan.prefix) - kept:
            remove_interface(name)

    def prepare(self) -> None:
        """Make one more slot ready."""
        with self._plan.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            slot = self._allocate(foreign_networks(self._plan.prefix))
            try:
                self._maker.build(slot)
            except BaseException:
                self.release(slot.index)
                raise
        with self._lock:
            self._ready.append(slot)

    def take(self) -> Slot:
        """A ready slot, or a new one when none is."""
        while True:
            with self._lock:
                if self._ready:
                    return self._ready.pop()
            self.prepare()

    def release(self, index: int) -> None:
        """Remove a slot and let its address be used again. Idempotent."""
        self._maker.destroy(self._plan.slot(index))
        with self._lock:
            self._taken.discard(index)

    def close(self) -> None:
        """Remove the slots that no sandbox has taken."""
        with self._lock:
            spare, self._ready = self._ready, []
        for slot in spare:
            self.release(slot.index)

    def _allocate(self, foreign: set[int]) -> Slot:
        # Addresses go round, so that a fresh sandbox does not get the one just given back:
        # a client may still hold connections to it.
        with self._lock:
            for step in range(self._plan.capacity):
                index = (self._next + step) % self._plan.capacity
                slot = self._plan.slot(index)
                if index not in self._taken and int(slot.gateway) - 1 not in foreign:
                    self._taken.add(index)
                    self._next = index + 1
                    return slot
        raise Unavailable(
            f"all {self._plan.capacity} addresses of {self._plan.network} are in use",
            code=Code.CAPACITY_EXHAUSTED,
            hint="delete sandboxes or set [local] network to a larger one",
        )


def build(slot: Slot) -> None:
    """Make the namespace, the pair and its addresses; blocks for a few milliseconds."""
    remove_interface(slot.interface)  # its former owner's may still be on its way out
    slot.namespace.touch()
    host_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.in_own_thread(lambda: _build_inside(slot, host_namespace))
    finally:
        os.close(host_namespace)
    set_up_host_side(slot)


def _build_inside(slot: Slot, host_namespace: int) -> None:
    linux.unshare(linux.CLONE_NEWNET)
    linux.bind(f"/proc/self/task/{threading.get_native_id()}/ns/net", str(slot.namespace))
    _guest_settings()
    with Links() as links:
        links.add_pair(GUEST_INTERFACE, slot.interface, host_namespace)
        guest = socket.if_nametoindex(GUEST_INTERFACE)
        links.set_up(_LOOPBACK)
        links.add_address(guest, slot.address, _PREFIX)
        links.set_up(guest)
        links.add_default_route(guest, slot.gateway)


def hand_over(slot: Slot, target: int) -> None:
    """Move the guest's end into the namespace of the descriptor `target`, and give it its address there."""
    source = os.open(slot.namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.in_own_thread(lambda: _move(source, target))
    finally:
        os.close(source)
    linux.in_own_thread(lambda: _settle(slot, target))
    destroy(slot)  # only the empty namespace: the pair is elsewhere


def _move(source: int, target: int) -> None:
    linux.enter_network(source)
    with Links() as links:
        links.move(socket.if_nametoindex(GUEST_INTERFACE), target)


def _settle(slot: Slot, target: int) -> None:
    linux.enter_network(target)
    _guest_settings()
    _address(slot)


def _address(slot: Slot) -> None:
    with Links() as links:
        guest = socket.if_nametoindex(GUEST_INTERFACE)
        links.add_address(guest, slot.address, _PREFIX, again=True)
        links.set_up(guest)
        links.add_default_route(guest, slot.gateway, again=True)


def destroy_pair(slot: Slot) -> None:
    """Remove a slot whose guest's end is in somebody else's namespace. Idempotent."""
    destroy(slot)
    remove_interface(slot.interface)


def address_again(slot: Slot) -> None:
    """Give the guest's end its address back: a network stack of the sandbox's own took it away."""
    namespace = os.open(slot.namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.in_own_thread(lambda: _address_again(slot, namespace))
    finally:
        os.close(namespace)


def _address_again(slot: Slot, namespace: int) -> None:
    linux.enter_network(namespace)
    _address(slot)


def _guest_settings() -> None:
    """Kernel settings of the new namespace; /proc/self/net follows the thread, /proc/sys too."""
    sysctl = "/proc/sys/net"
    if os.path.exists(f"{sysctl}/ipv6"):
        linux.write_file(f"{sysctl}/ipv6/conf/default/disable_ipv6", "1")
        linux.write_file(f"{sysctl}/ipv6/conf/all/disable_ipv6", "1")
        # ::1 stays, since programs that listen on "localhost" may choose it.
        linux.write_file(f"{sysctl}/ipv6/conf/lo/disable_ipv6", "0")
    # The sandbox's root has no rights over this namespace, yet expects port 80 and ping to work.
    linux.write_file(f"{sysctl}/ipv4/ip_unprivileged_port_start", "0")
    linux.write_file(f"{sysctl}/ipv4/ping_group_range", "0 65535")


def set_up_host_side(slot: Slot) -> None:
    """Give the host's interface of a slot its address and settings."""
    conf = f"/proc/sys/net/ipv4/conf/{slot.interface}"
    linux.write_file(f"{conf}/rp_filter", "1")
    linux.write_file(f"{conf}/forwarding", "1")
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        linux.write_file(f"/proc/sys/net/ipv6/conf/{slot.interface}/disable_ipv6", "1")
    index = socket.if_nametoindex(slot.interface)
    with Links() as links:
        links.add_address(index, slot.gateway, _PREFIX)
        links.set_up(index)


def destroy(slot: Slot) -> None:
    """Remove namespace and interface. Idempotent.

    Without its last reference the kernel takes the namespace down by itself, and the pair with it,
    some 20 ms later. Asking for the pair's removal would make this call wait for as long.
    """
    linux.unmount(str(slot.namespace))
    slot.namespace.unlink(missing_ok=True)


def remove_interface(name: str) -> None:
    """Remove a host-side interface at once; one that is gone, or going, is fine."""
    try:
        index = socket.if_nametoindex(name)
    except OSError:  # there is none
        return
    with Links() as links:
        links.remove(index)


def foreign_networks(prefix: str) -> set[int]:
    """Destinations of this host's IPv4 routes through interfaces that do not start with `prefix`.

    Two servers that were given one network see each other's slots by their routes.
    """
    rows = [line.split()[:2] for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    return {
        int.from_bytes(bytes.fromhex(destination), "little")
        for interface, destination in rows
        if not interface.startswith(prefix)
    }


def interfaces(prefix: str) -> set[str]:
    """Names of the interfaces of this machine that start with `prefix`."""
    return {name for _, name in socket.if_nameindex() if name.startswith(prefix)}
