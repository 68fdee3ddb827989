# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Clients and sandboxes for tests that must hold on every runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.server import Server


@pytest.fixture(params=["fake", "local", "gvisor", "docker"])
def runtime_name(request: pytest.FixtureRequest) -> str:
    """For tests that start a server of their own on every runtime."""
    return str(request.param)


@pytest.fixture
def image(server: Server) -> str:
    """One that holds what the suite uses: a shell, the usual programs, Python."""
    return server.image


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    """Talks to the daemons directly."""
    async with AsyncClient(Connection(server.url, server.api_key)) as made:
        yield made


@pytest.fixture
async def box(client: AsyncClient, image: str) -> AsyncIterator[AsyncSandbox]:
    """A sandbox with defaults."""
    async with await AsyncSandbox.create(image, client=client) as made:
        yield made


@pytest.fixture(params=["direct", "proxy"])
async def any_box(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that is reached directly in one test and through the server in its twin."""
    connection = Connection(server.url, server.api_key, use_server_proxy=request.param == "proxy")
    async with (
        AsyncClient(connection) as client,
        await AsyncSandbox.create(server.image, client=client) as made,
    ):
        yield made
