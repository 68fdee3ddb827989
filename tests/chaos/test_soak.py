# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A mixed load on one server that nobody disturbs: nothing fails, nothing grows.

`./dev bench soak` does 20 minutes of it. `./dev test` does two beside all other tests, with a rest after
each sandbox so that those get on; the three variables below are how.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support.mixture import Mixture
from support.server import Server
from support.traces import Traces, count

SECONDS = float(os.environ.get("CASULO_SOAK_SECONDS", "8"))
CLIENTS = int(os.environ.get("CASULO_SOAK_CLIENTS", "4"))
REST_SECONDS = float(os.environ.get("CASULO_SOAK_REST", "0"))
WARM_UP_SECONDS = 3.0
MOST_MIB_MORE = 48.0
"""Of a server that has just begun; a leak of the longer runs shows in their figures."""

PATIENT = "[admission]\nmax_wait_seconds = 120\n[sandbox]\nstop_grace_seconds = 1\n"


@pytest.mark.timeout(SECONDS + 600)
async def test_nothing_fails_and_nothing_grows(new_server: Callable[..., Server]) -> None:
    server = await asyncio.to_thread(new_server, "local", PATIENT)
    await _load(server, WARM_UP_SECONDS)
    before, memory = await _settled(server), _resident_mib(server)
    told = await _load(server, SECONDS)
    assert not told.faults, told.faults[:5]
    assert told.done["create"] and told.done["delete"]
    after = await _settled(server, before)
    assert not _grown(before, after), _grown(before, after)
    assert _resident_mib(server) - memory < MOST_MIB_MORE


async def _load(server: Server, seconds: float):
    def client() -> AsyncClient:
        return AsyncClient(Connection(server.url, server.api_key, request_timeout=150))

    load = Mixture(client, CLIENTS, time.monotonic() + seconds, lifetime=60, rest=REST_SECONDS)
    told = await load.run()
    await asyncio.to_thread(server.delete_all)
    return told


async def _settled(server: Server, wanted: Traces | None = None) -> Traces:
    """The count once it stays the same: spare slots are made again, connections closed."""
    assert server.process is not None
    previous: Traces | None = None
    for _ in range(150):
        now = await asyncio.to_thread(count, server.process.pid, server.data_dir)
        if now == previous and (wanted is None or not _grown(wanted, now)):
            break
        previous = now
        await asyncio.sleep(0.4)
    return now


def _grown(before: Traces, after: Traces) -> dict[str, int]:
    """Worker threads are made when they are first needed, and then stay."""
    more = before.growth(after)
    return {kind: n for kind, n in more.items() if n > 0 and kind != "server_threads_more"}


def _resident_mib(server: Server) -> float:
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS:"))
