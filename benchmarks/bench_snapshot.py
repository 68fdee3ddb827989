# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots of a sandbox with 200 MB of changes: taking one, how long the sandbox stands still for it,
and from a restore to the first command's end. Where gVisor is: the same of one with memory, and of none."""

from __future__ import annotations

import asyncio
import re
import shutil
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, Value, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox

TAKES = 5
RESTORES = 20
MEGABYTES = 200

# Twenty large files and two thousand small ones, as a package manager leaves them.
_FILL = f"""
set -e; mkdir -p ~/big ~/small; cd ~/big
for i in $(seq 20); do head -c {MEGABYTES // 20 - 1}M /dev/urandom > $i; done
cd ~/small; head -c 20M /dev/urandom | split -b 10240 -a 3 - f
"""
_TICKS = """
import time
last = time.monotonic(); worst = 0.0; end = last + 2.5
while last < end:
    now = time.monotonic(); worst = max(worst, now - last); last = now
    time.sleep(0.0005)
print(worst)
"""


async def measure() -> Report:
    taken, still, restored, bare = [], [], [], []
    async with serving() as (_, client), await AsyncSandbox.create("host", client=client) as source:
        (await source.commands.run(_FILL)).check()
        for _ in range(TAKES):
            seconds, stood = await _take(source, client)
            taken.append(seconds)
            still.append(stood)
        snapshot = await source.snapshot()
        for _ in range(RESTORES):
            restored.append(await _first_command(client, snapshot=snapshot))
            bare.append(await _first_command(client, image="host"))
        await client.snapshots.delete(snapshot.id)
    figures = {
        "takes": TAKES,
        "restores": RESTORES,
        "megabytes": MEGABYTES,
        **milliseconds("take_", taken),
        **milliseconds("frozen_", still),
        **milliseconds("restore_", restored),
        **milliseconds("create_", bare),
        **await _with_memory(),
    }
    return Report("snapshot", figures, conditions())


async def _with_memory() -> dict[str, Value]:
    if shutil.which("runsc") is None:
        return {"memory_restores": 0}
    kept = {"casulo.snapshot.memory": "true"}
    restored, bare = [], []
    async with (
        serving(extra='[local]\nisolation = "gvisor"\n') as (_, client),
        await AsyncSandbox.create("host", client=client, extensions=kept) as source,
    ):
        snapshot = await source.snapshot()
        for turn in range(1 + RESTORES):
            figures = await _first_command(client, snapshot=snapshot), await _first_command(client)
            if turn:  # the first finds nothing in the page cache
                restored.append(figures[0])
                bare.append(figures[1])
        await client.snapshots.delete(snapshot.id)
    whole = {**milliseconds("memory_restore_", restored), **milliseconds("gvisor_create_", bare)}
    return {"memory_restores": RESTORES, **whole}


async def _take(source: AsyncSandbox, client: AsyncClient) -> tuple[float, float]:
    """How long it took, and the longest gap that a program in the sandbox saw meanwhile."""
    watching = asyncio.ensure_future(source.commands.run(["python3", "-c", _TICKS]))
    await asyncio.sleep(0.5)
    begun = time.perf_counter()
    snapshot = await source.snapshot()
    seconds = time.perf_counter() - begun
    gap = float(re.findall(r"[\d.e-]+", (await watching).check().stdout)[0])
    await client.snapshots.delete(snapshot.id)
    return seconds, gap


async def _first_command(client: AsyncClient, **source: object) -> float:
    begun = time.perf_counter()
    box = await AsyncSandbox.create(client=client, **source)  # type: ignore[arg-type]
    (await box.commands.run(["true"])).check()
    seconds = time.perf_counter() - begun
    await box.kill()
    return seconds
