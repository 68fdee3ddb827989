# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Many creates at the same moment: how many succeed, and how long each caller waits for its first command."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, Value, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError

CROWDS = (1, 10, 20, 100)


async def measure() -> Report:
    figures: dict[str, Value] = {}
    async with serving() as (_, client):
        (await _one(client)).check()
        for crowd in CROWDS:
            figures |= await _burst(client, crowd)
    return Report("burst", figures, conditions())


async def _burst(client: AsyncClient, crowd: int) -> dict[str, Value]:
    began = time.perf_counter()
    waits = [wait.seconds for wait in await asyncio.gather(*(_one(client) for _ in range(crowd))) if wait.ok]
    return {
        f"c{crowd}_succeeded": len(waits),
        **milliseconds(f"c{crowd}_", waits or [0.0]),
        f"c{crowd}_all_s": round(time.perf_counter() - began, 2),
    }


class _Wait:
    """How long one caller waited, and whether it got what it came for."""

    def __init__(self, seconds: float, error: CasuloError | None) -> None:
        self.seconds = seconds
        self.ok = error is None
        self._error = error

    def check(self) -> None:
        if self._error:
            raise self._error


async def _one(client: AsyncClient) -> _Wait:
    began = time.perf_counter()
    try:
        sandbox = await AsyncSandbox.create("host", client=client)
        (await sandbox.commands.run(["true"])).check()
        wait = time.perf_counter() - began
        await sandbox.kill()
    except CasuloError as error:
        return _Wait(time.perf_counter() - began, error)
    return _Wait(wait, None)
