# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One small internet and one server for all tests of network policies."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support.engine import Engine
from support.internet.boxes import isolations, make_docker_server, make_server
from support.internet.world import World
from support.machine import cannot_run, why_no_local_runtime
from support.server import Server


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The small internet."""
    if reason := why_no_local_runtime():
        cannot_run(reason)
    made = World(tmp_path_factory.mktemp("internet"), random.Random(os.getpid()).randrange(2, 250))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="session")
def egress_server(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share."""
    server = make_server(tmp_path_factory.mktemp("server-egress"), world)
    server.start()
    yield server
    server.delete_all()
    server.stop()


@pytest.fixture(scope="session")
def docker_egress_server(
    world: World, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The same with sandboxes of a Docker engine."""
    server = make_docker_server(tmp_path_factory.mktemp("server-egress-docker"), world, engine)
    server.start()
    yield server
    server.delete_all()
    server.stop()


@pytest.fixture(scope="module", params=isolations())
def ground(request: pytest.FixtureRequest) -> tuple[Server, str]:
    """A server, and the isolation that its sandboxes shall have: each in turn."""
    where = str(request.param)
    name = "docker_egress_server" if where == "docker" else "egress_server"
    return request.getfixturevalue(name), where


@pytest.fixture
async def client(egress_server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(egress_server.url, egress_server.api_key)) as made:
        yield made
