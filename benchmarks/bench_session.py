# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`true` in a shell that is there already: the round trip, and the daemon's own share of it."""

from __future__ import annotations

import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds, quantile
from casulo.client.sandbox import AsyncSandbox

RUNS = 1000


async def measure() -> Report:
    async with (
        serving() as (_, client),
        await AsyncSandbox.create("host", client=client) as sandbox,
        await sandbox.sessions.create() as session,
    ):
        for _ in range(20):
            (await session.run("true")).check()
        times, inside = [], []
        for _ in range(RUNS):
            begun = time.perf_counter()
            done = (await session.run("true")).check()
            times.append(time.perf_counter() - begun)
            inside.append(done.duration_ms)
    figures = {"runs": RUNS, **milliseconds("", times), "daemon_p50_ms_whole": quantile(inside, 0.5)}
    return Report("session", figures, conditions())
