# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes made and deleted without a pause: how many per second the machine keeps up."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox

SECONDS = 20.0
WORKERS = 8


async def measure() -> Report:
    async with serving() as (_, client):
        await _cycle(client)
        began = time.perf_counter()
        cycles = await asyncio.gather(*(_worker(client, began + SECONDS) for _ in range(WORKERS)))
        seconds = time.perf_counter() - began
    samples = [cycle for worker in cycles for cycle in worker]
    figures = {
        "workers": WORKERS,
        "sandboxes": len(samples),
        "per_second": round(len(samples) / seconds, 1),
        **milliseconds("create_and_delete_", samples),
    }
    return Report("churn", figures, conditions())


async def _worker(client: AsyncClient, until: float) -> list[float]:
    samples = []
    while time.perf_counter() < until:
        samples.append(await _cycle(client))
    return samples


async def _cycle(client: AsyncClient) -> float:
    began = time.perf_counter()
    sandbox = await AsyncSandbox.create("host", client=client)
    await sandbox.kill()
    return time.perf_counter() - began
