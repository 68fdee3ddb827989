# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Servers with machines, on either monitor, and one machine that stands still from the beginning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import microvm
from support.microvm import Asleep
from support.server import Server


@pytest.fixture(scope="session", params=["microvm", microvm.FIRECRACKER])
def night(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Asleep]]:
    """A server, and what was put to sleep on it."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    yield server, microvm.put_to_sleep(server)


@pytest.fixture
def machines(night: tuple[Server, Asleep]) -> Server:
    """The server."""
    return night[0]


@pytest.fixture
def asleep(night: tuple[Server, Asleep]) -> Asleep:
    """The machine that stands still."""
    return night[1]
