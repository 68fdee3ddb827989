# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How long a delete takes until the server says that every trace is gone."""

from __future__ import annotations

import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.sandbox import AsyncSandbox

RUNS = 100
WARM_UP = 5


async def measure() -> Report:
    times = []
    async with serving() as (_, client):
        for run in range(WARM_UP + RUNS):
            sandbox = await AsyncSandbox.create("host", client=client)
            (await sandbox.commands.run(["true"])).check()
            begun = time.perf_counter()
            await sandbox.kill()
            if run >= WARM_UP:
                times.append(time.perf_counter() - begun)
    return Report("delete", {"runs": RUNS, **milliseconds("", times)}, conditions())
