# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From the create call to the end of the first command, out of a pool and without one, in turns."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds, quantile
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox

RUNS = 50
WARM_UP = 3
SIZE = 4
_POOL = "[pools.named.bench]\nimage = 'host'\nresources = { memory = '256Mi' }\nmin = 4\nmax = 4\n"


async def measure() -> Report:
    pooled, cold = [], []
    async with serving(extra=_POOL) as (_, client):
        for turn in range(WARM_UP + RUNS):
            await _full(client)
            hit, miss = await _once(client, "256Mi"), await _once(client, "128Mi")
            if turn >= WARM_UP:
                pooled.append(hit)
                cold.append(miss)
    whole = [seconds for _, seconds in pooled]
    figures = {
        "runs": RUNS,
        **milliseconds("", whole),
        **milliseconds("create_only_", [seconds for seconds, _ in pooled]),
        **milliseconds("cold_", [seconds for _, seconds in cold]),
        "ratio": round(quantile([s for _, s in cold], 0.5) / quantile(whole, 0.5), 2),
    }
    return Report("pool", figures, conditions())


async def _full(client: AsyncClient) -> None:
    """Wait until the pool is, and then a little for its last work to be over."""
    while (await client.pools.get("bench")).available < SIZE:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)


async def _once(client: AsyncClient, memory: str) -> tuple[float, float]:
    """Seconds until the sandbox is there, and until its first command ended."""
    begun = time.perf_counter()
    sandbox = await AsyncSandbox.create("host", resources={"memory": memory}, client=client)
    created = time.perf_counter()
    done = await sandbox.commands.run(["true"])
    ended = time.perf_counter()
    done.check()
    await sandbox.kill()
    return created - begun, ended - begun
