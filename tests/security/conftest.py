# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Two real sandboxes side by side: one that misbehaves, and its neighbour."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.server import Server


@pytest.fixture
def place() -> str:
    """What the sandboxes of a module run on, unless it says otherwise."""
    return "local"


@pytest.fixture
def host(request: pytest.FixtureRequest, place: str) -> Server:
    """The server of that place."""
    found: Server = request.getfixturevalue(f"{place}_server")
    return found


@pytest.fixture
async def client(host: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(host.url, host.api_key)) as made:
        yield made


NEEDED_TO_HARM = 1 << 21 | 1 << 22 | 1 << 25 | 1 << 16


async def _contained(box: AsyncSandbox) -> AsyncSandbox:
    """These tests kill everything they see; make sure that this is not the machine itself."""
    told = await box.commands.run("readlink /proc/self/ns/pid; grep CapEff /proc/self/status")
    namespace, _, capabilities = told.check().stdout.partition("\n")
    assert namespace != os.readlink("/proc/self/ns/pid")
    assert not int(capabilities.split()[1], 16) & NEEDED_TO_HARM
    return box


@pytest.fixture
async def box(client: AsyncClient) -> AsyncIterator[AsyncSandbox]:
    """A sandbox with small limits."""
    limits = {"cpu": "500m", "memory": "128Mi", "pids": "64"}
    async with await AsyncSandbox.create("host", resources=limits, client=client) as made:
        yield await _contained(made)


@pytest.fixture
async def neighbour(client: AsyncClient) -> AsyncIterator[AsyncSandbox]:
    """Another sandbox of the same server."""
    async with await AsyncSandbox.create("host", client=client) as made:
        yield made
