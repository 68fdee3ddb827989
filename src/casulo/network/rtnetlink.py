# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The few requests to the kernel that every sandbox's network takes, without a library in between.

A slot is made for each sandbox, so this is on the path of every create: spelled out here, a slot costs a
tenth of the processor time that a general netlink library needs for it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address
from typing import Self

_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE = 16, 17, 20, 24
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_NEW = _EXCLUSIVE | _CREATE
_ERROR = 2
_UP = 1
_MAIN_TABLE, _STATIC, _UNICAST = 254, 4, 1
_IFNAME, _LINKINFO, _NET_NS_FD, _KIND, _DATA, _PEER = 3, 18, 28, 1, 2, 1
_ADDRESS, _LOCAL, _OUT, _GATEWAY = 1, 2, 4, 5
_LIMIT = 64 * 1024
_TIMEOUT_SECONDS = 10.0

_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDR = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")


class Links:
    """A conversation about the network namespace of the thread that opens it. OSError tells what failed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._socket.bind((0, 0))
        self._serial = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def add_pair(self, name: str, peer: str, peer_namespace: int) -> None:
        """A veth pair: one end here, the other in the namespace of a descriptor."""
        other = _link() + _text(_IFNAME, peer) + _attribute(_NET_NS_FD, struct.pack("=I", peer_namespace))
        kind = _text(_KIND, "veth") + _attribute(_DATA, _attribute(_PEER, other))
        self._ask(_NEWLINK, _NEW, _link() + _text(_IFNAME, name) + _attribute(_LINKINFO, kind))

    def set_up(self, index: int) -> None:
        """Switch an interface on."""
        self._ask(_NEWLINK, 0, _link(index, _UP))

    def move(self, index: int, namespace: int) -> None:
        """Put an interface into the namespace of a descriptor; it is off there, and has no address."""
        self._ask(_NEWLINK, 0, _link(index) + _attribute(_NET_NS_FD, struct.pack("=I", namespace)))

    def remove(self, index: int) -> None:
        """Delete an interface; one that is gone is fine."""
        try:
            self._ask(_DELLINK, 0, _link(index))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def add_address(self, index: int, address: IPv4Address, prefix: int, *, again: bool = False) -> None:
        """Give an interface an address; `again` where it may have it already."""
        body = _ADDR.pack(socket.AF_INET, prefix, 0, 0, index)
        body += _attribute(_LOCAL, address.packed) + _attribute(_ADDRESS, address.packed)
        self._ask(_NEWADDR, _CREATE | (_REPLACE if again else _EXCLUSIVE), body)

    def add_default_route(self, index: int, gateway: IPv4Address, *, again: bool = False) -> None:
        """Send everything through a gateway."""
        body = _ROUTE.pack(socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _STATIC, 0, _UNICAST, 0)
        body += _attribute(_GATEWAY, gateway.packed) + _attribute(_OUT, struct.pack("=I", index))
        self._ask(_NEWROUTE, _CREATE | (_REPLACE if again else _EXCLUSIVE), body)

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        """One request, and the kernel's answer to it."""
        self._serial += 1
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, kind, flags | _REQUEST | _ACK, self._serial, 0) + body)
        while True:
            answer = self._socket.recv(_LIMIT)
            _, told, _, serial, _ = _HEADER.unpack_from(answer)
            if serial == self._serial and told == _ERROR:
                break
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))


def _link(index: int = 0, flags: int = 0) -> bytes:
    return _LINK.pack(socket.AF_UNSPEC, 0, index, flags, flags)


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")
