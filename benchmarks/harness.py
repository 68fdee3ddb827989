# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server for one measurement, started as a process in a temporary data folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.report import Value
from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support import microvm
from support.server import Server

NETWORK = os.environ.get("CASULO_BENCH_NETWORK", "10.231.0.0/16")
"""Where two run on one machine, each needs its own."""


@asynccontextmanager
async def serving(runtime: str = "local", extra: str = "") -> AsyncIterator[tuple[Server, AsyncClient]]:
    """A fresh server and a client of it; every sandbox is removed at the end."""
    tables = {"local": f'[local]\nnetwork = "{NETWORK}"\n', "microvm": microvm.tables(NETWORK, "")}
    table = "" if f"[{runtime}]" in extra else tables.get(runtime, "")
    with tempfile.TemporaryDirectory(prefix="casulo-bench-") as place:
        server = Server(Path(place), runtime, table + extra).start()
        try:
            async with AsyncClient(Connection(server.url, server.api_key)) as client:
                yield server, client
            server.delete_all()
        finally:
            server.stop()


def conditions() -> dict[str, Value]:
    """What the local runtime stands on."""
    for name in ("crun", "runc"):
        try:
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        return {"image": "host", "oci_runtime": told.stdout.partition("\n")[0]}
    return {"image": "host"}
