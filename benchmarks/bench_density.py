# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Hundreds of idle sandboxes at once: what they cost, and how quickly the server still answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.lifecycle import AsyncClient

SANDBOXES = 500
CALLS = 200
AT_ONCE = 16


async def measure() -> Report:
    async with serving() as (_, client):
        before, began = _available_mib(), time.perf_counter()
        turns = asyncio.Semaphore(AT_ONCE)
        ids = await asyncio.gather(*(_create(client, turns) for _ in range(SANDBOXES)))
        seconds = time.perf_counter() - began
        await asyncio.sleep(5)
        used = before - _available_mib()
        gets = await _timed(lambda n: client.get(ids[n % len(ids)]))
        lists = await _timed(lambda n: client.list(page_size=20, page=1 + n % 10))
        running = (await client.list(states=["Running"], page_size=1)).total_items
    figures = {
        "sandboxes": len(ids),
        "running": running,
        "seconds_to_create": round(seconds, 1),
        "mib_each": round(used / len(ids), 2),
        **milliseconds("get_", gets),
        **milliseconds("list_", lists),
    }
    return Report("density", figures, conditions())


async def _create(client: AsyncClient, turns: asyncio.Semaphore) -> str:
    request = {"image": {"uri": "host"}, "resourceLimits": {}, "timeout": 3600}
    async with turns:
        info, _ = await client.create(request, timeout=120)
    return info.id


async def _timed(call: Callable[[int], Awaitable[object]]) -> list[float]:
    samples = []
    for number in range(CALLS):
        began = time.perf_counter()
        await call(number)
        samples.append(time.perf_counter() - began)
    return samples


def _available_mib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0
