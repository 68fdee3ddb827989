# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The address on which the server listens."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from casulo.model.errors import Code, InvalidRequest

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_socket(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 lets the system choose. InvalidRequest when the address cannot be had."""
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = _resolved(host, port)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InvalidRequest(
            f"cannot listen on {host}:{port}: {error.strerror}",
            code=Code.INVALID_PARAMETER,
            hint="choose another [server] host or port; port 0 takes any free one",
        ) from None
    return listener


def _resolved(host: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    """The first address of `host`, IPv4 before IPv6."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return min(found, key=lambda candidate: candidate[0] != socket.AF_INET)


def url_of(host: str, listener: socket.socket) -> str:
    """How a client on this machine reaches `listener`."""
    name = _WILDCARDS.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{listener.getsockname()[1]}"
