# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server on the Docker runtime that allows one directory of the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casulo.client import AsyncClient, Connection
from support.dockered import Place
from support.engine import Engine
from support.server import Server


@pytest.fixture(scope="module")
def served(new_module_server: Callable[..., Server], tmp_path_factory: Any) -> Iterator[tuple[Server, Path]]:
    allowed = tmp_path_factory.mktemp("allowed")
    yield new_module_server("docker", f'[storage]\nallowed_host_paths = ["{allowed}"]\n'), allowed


@pytest.fixture
async def place(served: tuple[Server, Path], engine: Engine) -> AsyncIterator[Place]:
    server, allowed = served
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        yield Place(server, engine, client, allowed)
