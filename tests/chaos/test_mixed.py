# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`kill -9` of the server at random moments of a mixed load: what clients were told holds, nothing is left.

More kills: `CASULO_CHAOS_KILLS=200 python -m pytest tests/chaos`. The seed is part of a failure's message.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable

import pytest

from casulo.client.connection import Connection
from casulo.client.faults import CONNECTION_FAILED, DISCONNECTED, REQUEST_TIMEOUT, STREAM_BROKEN
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, Code, NotFound
from support.mixture import Mixture, Told
from support.server import Server
from support.traces import Traces, count

KILLS = int(os.environ.get("CASULO_CHAOS_KILLS", "3"))
POOLS = "[pools.named.usual]\nimage = 'host'\nmin = 2\nmax = 2\n[sandbox]\nstop_grace_seconds = 1\n"
BROKEN = {CONNECTION_FAILED, DISCONNECTED, REQUEST_TIMEOUT, STREAM_BROKEN}
HALFWAY = {
    Code.SANDBOX_NOT_RUNNING,
    Code.SANDBOX_NOT_PAUSED,
    Code.ENDPOINT_NOT_READY,
    Code.IDEMPOTENCY_CONFLICT,
}
OF_THE_PROCESS = {"server_descriptors_more", "server_threads_more"}  # which was killed, and is another now


@pytest.mark.timeout(600)
async def test_what_clients_were_told_stays_true(new_server: Callable[..., Server]) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    server = await asyncio.to_thread(new_server, "local", POOLS)
    before = await settled(server)
    load = Mixture(
        lambda: client_of(server), workers=4, until=time.monotonic() + 3600, excused=excused, seed=seed
    )
    working = asyncio.create_task(load.run())
    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.1, 1.5))
        await asyncio.to_thread(server.crash)
        await asyncio.to_thread(server.start)
    load.until = 0
    told = await asyncio.wait_for(working, 120)
    assert not told.faults, (seed, told.faults)
    assert told.done["create"] and told.done["delete"], (seed, told.done)
    await check(server, told, seed)
    await asyncio.to_thread(server.delete_all)
    after = await settled(server, before)
    assert not grown(before, after), f"{seed}: {grown(before, after)}"


def client_of(server: Server) -> AsyncClient:
    return AsyncClient(Connection(server.url, server.api_key, request_timeout=15))


def excused(error: CasuloError) -> bool:
    """A server that was killed breaks connections; what came through may meet a sandbox halfway."""
    return error.code in BROKEN | HALFWAY or isinstance(error, NotFound)


async def check(server: Server, told: Told, seed: int) -> None:
    async with client_of(server) as client:
        for sandbox_id in told.there:
            if (await client.get(sandbox_id)).state == "Paused":  # killed between pause and resume
                await client.resume(sandbox_id)
            async with asyncio.timeout(30), await AsyncSandbox.connect(sandbox_id, client=client) as box:
                assert (await box.commands.run(["true"])).exit_code == 0, (seed, sandbox_id)
        for sandbox_id in told.gone:
            with pytest.raises(NotFound):
                await client.get(sandbox_id)


def grown(before: Traces, after: Traces) -> dict[str, int]:
    """What there is more of."""
    return {kind: n for kind, n in before.growth(after).items() if n > 0 and kind not in OF_THE_PROCESS}


async def settled(server: Server, wanted: Traces | None = None) -> Traces:
    """The count once the pool is full and it stays the same, and, if need be, is as it was."""
    assert server.process is not None
    async with asyncio.timeout(60), client_of(server) as client:
        while (await client.pools.get("usual")).available != 2:
            await asyncio.sleep(0.1)
    found: Traces | None = None
    for _ in range(100):
        await asyncio.sleep(0.3)
        previous, found = found, await asyncio.to_thread(count, server.process.pid, server.data_dir)
        if found == previous and (wanted is None or not grown(wanted, found)):
            break
    assert found is not None
    return found
