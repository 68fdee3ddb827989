# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`true` on a running sandbox over one kept connection, many times in a row."""

from __future__ import annotations

import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError

RUNS = 2000
WARM_UP = 50


async def measure() -> Report:
    async with serving() as (_, client), await AsyncSandbox.create("host", client=client) as sandbox:
        for _ in range(WARM_UP):
            (await sandbox.commands.run("true")).check()
        shell, unclean = await _repeat(sandbox, "true")
        vector, unclean_vector = await _repeat(sandbox, ["true"])
    figures = {
        "runs": RUNS,
        **milliseconds("", shell),
        **milliseconds("argv_", vector),
        "unclean_ends": unclean + unclean_vector,
    }
    return Report("exec", figures, {**conditions(), "channel": "direct, keep-alive"})


async def _repeat(sandbox: AsyncSandbox, command: str | list[str]) -> tuple[list[float], int]:
    """Seconds of each run, and how many had not a clean end."""
    times, unclean = [], 0
    for _ in range(RUNS):
        begun = time.perf_counter()
        try:
            done = await sandbox.commands.run(command)
        except CasuloError:
            unclean += 1
            continue
        times.append(time.perf_counter() - begun)
        unclean += not done.ok
    return times, unclean
