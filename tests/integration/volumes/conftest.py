# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One server for each program that starts containers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casulo.client import (
    AsyncClient,
    Connection,
)
from support.machine import cannot_run
from support.server import Server
from support.volumes import Place

ENGINES = {
    "crun": 'oci_runtime = "crun"\n',
    "runc": 'oci_runtime = "runc"\n',
    "runsc": 'isolation = "gvisor"\n',
}


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, new_module_server: Callable[..., Server], tmp_path_factory: Any
) -> Iterator[tuple[Server, Path, Path]]:
    if shutil.which(request.param) is None:
        cannot_run(f"{request.param} is not installed")
    top = tmp_path_factory.mktemp("host")
    (top / "allowed").mkdir()
    (top / "outside").mkdir()
    # Allowed through a link: both sides are compared by where they really are.
    (top / "link").symlink_to("allowed")
    server = new_module_server(
        "local",
        extra=f'[storage]\nallowed_host_paths = ["{top / "link"}"]\n',
        local=ENGINES[request.param],
    )
    yield server, top / "allowed", top / "outside"


@pytest.fixture
async def place(served: tuple[Server, Path, Path]) -> AsyncIterator[Place]:
    server, allowed, outside = served
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        yield Place(server, client, allowed, outside)
