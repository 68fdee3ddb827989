# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ending connections to an address, on real sockets."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address

import pytest

from casulo.network import connections
from support.machine import cannot_run


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_connections_to_the_address_end(family: int) -> None:
    if os.geteuid() != 0:
        cannot_run("only root may end other programs' connections")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        ended, kept = (_connected(family, address, port) for address in ("127.77.0.1", "127.77.0.2"))
        with ended, kept:
            assert connections.sever(IPv4Address("127.77.0.1")) >= 1
            with pytest.raises(ConnectionAbortedError):
                ended.recv(1)
            kept.settimeout(0.05)
            with pytest.raises(TimeoutError):
                kept.recv(1)
    assert connections.sever(IPv4Address("127.77.0.1")) == 0


def _connected(family: int, address: str, port: int) -> socket.socket:
    client = socket.socket(family)
    client.settimeout(5)
    client.connect((address if family == socket.AF_INET else f"::ffff:{address}", port))
    return client
