# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What many creates and deletes leave on the machine: nothing, if all is well."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.server import Server
from support.traces import Traces, count

CYCLES = 300
WARM_UP = 20


async def measure() -> Report:
    async with serving() as (server, client):
        for _ in range(WARM_UP):
            await _cycle(client)
        before = await _settled(server)
        begun = time.perf_counter()
        for _ in range(CYCLES):
            await _cycle(client)
        seconds = time.perf_counter() - begun
        growth = before.growth(await _settled(server))
    figures = {
        "cycles": CYCLES,
        "seconds": round(seconds, 1),
        **growth,
        "anything_more": any(n > 0 for n in growth.values()),
    }
    return Report("leak", figures, conditions())


async def _cycle(client: AsyncClient) -> None:
    sandbox = await AsyncSandbox.create("host", client=client)
    (await sandbox.commands.run(["true"])).check()
    await sandbox.kill()


async def _settled(server: Server) -> Traces:
    """The count once it stays the same for a second: spare slots are made again, the kernel is done."""
    assert server.process is not None
    now = count(server.process.pid, server.data_dir)
    same = 0
    for _ in range(200):
        await asyncio.sleep(0.2)
        previous, now = now, count(server.process.pid, server.data_dir)
        same = same + 1 if now == previous else 0
        if same == 5:
            break
    return now
