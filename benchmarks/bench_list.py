# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Listing a page while a thousand sandboxes are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks.harness import serving
from benchmarks.report import Report, milliseconds
from casulo.client.lifecycle import AsyncClient

STORED = 1000
RUNS = 100
PARALLEL = 8


async def measure() -> Report:
    async with serving("fake") as (_, client):
        queue = iter(range(STORED))
        await asyncio.gather(*(_fill(client, queue) for _ in range(PARALLEL)))
        total = (await client.list()).total_items
        plain = await _repeat(client, page_size=20)
        last = await _repeat(client, page_size=20, page=STORED // 20)
        large = await _repeat(client, page_size=200)
        filtered = await _repeat(client, page_size=20, metadata={"half": "odd"})
    figures = {
        "stored": total,
        "runs": RUNS,
        **milliseconds("", plain),
        **milliseconds("last_page_", last),
        **milliseconds("page_of_200_", large),
        **milliseconds("filtered_", filtered),
    }
    return Report("list", figures, {"runtime": "fake", "page_size": 20, "note": "sandboxes have ended"})


async def _fill(client: AsyncClient, numbers: Iterator[int]) -> None:
    """Sandboxes whose entrypoint ends at once: they stay stored but cost no memory."""
    for number in numbers:
        half = "odd" if number % 2 else "even"
        body = {"image": {"uri": "host"}, "entrypoint": ["true"], "resourceLimits": {}, "timeout": 3600}
        await client.create({**body, "metadata": {"half": half}})


async def _repeat(client: AsyncClient, **query: object) -> list[float]:
    times = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        page = await client.list(**query)  # type: ignore[arg-type]
        times.append(time.perf_counter() - begun)
        assert len(page) > 0
    return times
