# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Slots of virtual machines: a tap device with the host's half of an address pair.

The device is there as long as somebody holds its descriptor open. The monitor's process inherits it
and this one lets go, so that whatever ends the monitor removes the device as well.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading

from pyroute2 import IPRoute

from casulo.model.errors import Code, Unsupported
from casulo.network.slots import Maker, Plan, Slot, Slots, remove_interface, set_up_host_side

_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_REQUEST = struct.Struct("16sH22x")


class Taps:
    """All tap devices of one server. Methods block; call them from worker threads."""

    def __init__(self, plan: Plan) -> None:
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self._slots = Slots(plan, Maker(self._build, self._destroy))

    def at(self, index: int) -> Slot:
        """The names and addresses of slot `index`."""
        return self._slots.at(index)

    def restore(self, indexes: set[int]) -> None:
        """Keep the addresses of living machines and remove every other device of an earlier server."""
        self._slots.restore(indexes)

    def take(self) -> tuple[Slot, int]:
        """A new device and its descriptor, which the caller closes."""
        slot = self._slots.take()
        with self._lock:
            return slot, self._open.pop(slot.index)

    def reopen(self, index: int) -> int:
        """The device of a slot that is still taken, once more; the caller closes the descriptor."""
        self._build(self._slots.at(index))
        with self._lock:
            return self._open.pop(index)

    def release(self, index: int) -> None:
        """Let the address be used again. Idempotent."""
        self._slots.release(index)

    def close(self) -> None:
        """Remove the devices that no machine has taken."""
        self._slots.close()

    def _build(self, slot: Slot) -> None:
        remove_interface(slot.interface)  # its former owner's may still be on its way out
        descriptor = _open(slot.interface)
        try:
            _name_hardware(slot)
            set_up_host_side(slot)
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            self._open[slot.index] = descriptor

    def _destroy(self, slot: Slot) -> None:
        with self._lock:
            descriptor = self._open.pop(slot.index, None)
        if descriptor is not None:
            os.close(descriptor)
        remove_interface(slot.interface)


def _name_hardware(slot: Slot) -> None:
    """The gateway has the same address whenever the device is made again: the guest remembers it."""
    address = "02:" + ":".join(f"{byte:02x}" for byte in b"\xc4" + slot.gateway.packed)
    with IPRoute() as netlink:
        netlink.link("set", index=socket.if_nametoindex(slot.interface), address=address)


def _open(name: str) -> int:
    try:
        descriptor = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unsupported(
            f"{_TUN} cannot be opened: {error.strerror}",
            code=Code.HOST_UNSUPPORTED,
            hint="load the kernel module: modprobe tun",
        ) from error
    try:
        fcntl.ioctl(
            descriptor, _TUNSETIFF, _REQUEST.pack(name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
