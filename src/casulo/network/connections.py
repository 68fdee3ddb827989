# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ending this host's TCP connections to an address whose network stack is gone.

A container's sockets belong to the kernel, which closes them when the container ends. A sandbox with a
kernel of its own takes them along without a word, and its peers would wait for an answer for ever.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address

_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI48s")
_IDENTITY = slice(4, 52)
"""Where in an answer the ports, addresses and cookie of a socket are: what names it to the kernel."""

_ALL_STATES = 0xFFFFFFFF


def sever(peer: IPv4Address) -> int:
    """Abort every TCP connection to `peer`; their owners see an error at once. How many there were."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        ended = 0
        for family in (socket.AF_INET, socket.AF_INET6):
            for identity in [i for i in _sockets(netlink, family) if _is_to(i, family, peer)]:
                ended += _destroy(netlink, family, identity)
        return ended


def _is_to(identity: bytes, family: int, peer: IPv4Address) -> bool:
    remote = identity[20:36]
    wanted = peer.packed if family == socket.AF_INET else b"\0" * 10 + b"\xff\xff" + peer.packed
    return remote.startswith(wanted)


def _sockets(netlink: socket.socket, family: int) -> Iterator[bytes]:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES, bytes(48))
    _send(netlink, _BY_FAMILY, _REQUEST | _DUMP, query)
    while True:
        for kind, body in _messages(netlink.recv(1 << 16)):
            if kind == _DONE:
                return
            if kind == _ERROR:
                _check(body, "list the connections")
                return
            yield body[_IDENTITY]


def _destroy(netlink: socket.socket, family: int, identity: bytes) -> bool:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES, identity)
    _send(netlink, _DESTROY, _REQUEST | _ACK, query)
    ((_, body),) = _messages(netlink.recv(1 << 16))
    return _check(body, "end a connection")


def _check(body: bytes, what: str) -> bool:
    """False when the connection ended by itself, or is past the state in which somebody waits."""
    code = -struct.unpack_from("=i", body)[0]
    if code in (errno.ENOENT, errno.EINVAL):
        return False
    if code:
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return True


def _send(netlink: socket.socket, kind: int, flags: int, body: bytes) -> None:
    netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]
