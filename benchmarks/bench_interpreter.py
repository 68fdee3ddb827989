# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The code interpreter: first result in a fresh sandbox, warm cells, and what a Python context costs."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, Value, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.traces import executable, pids, proportional_kib

FRESH = 20
WARM = 1000
STARTS = 30
CONTEXTS = 10
MEGABYTES = 100
LINE = "x" * 99
BARE = "import time\ntime.sleep(1000)"
START_PROBE = (
    "import subprocess, time\ntimes = []\n"
    f"for _ in range({STARTS}):\n"
    "    begun = time.perf_counter()\n"
    "    subprocess.run(['python3', '-c', 'pass'])\n"
    "    times.append(time.perf_counter() - begun)\n"
    "sorted(times)[len(times) // 2] * 1000"
)


async def measure() -> Report:
    async with serving() as (_, client):
        first = await _first_results(client)
        async with await AsyncSandbox.create("host", client=client) as sandbox:
            figures: dict[str, Value] = {
                **milliseconds("first_result_", first),
                **milliseconds("warm_", await _warm(sandbox)),
                **await _starts(sandbox),
                **await _memory(sandbox),
                **await _throughput(sandbox),
            }
    return Report("code", figures, {**conditions(), "cell": "1 + 1", "channel": "direct, keep-alive"})


async def _first_results(client: AsyncClient) -> list[float]:
    """Create, first cell, result; everything included."""
    times = []
    for _ in range(FRESH):
        begun = time.perf_counter()
        sandbox = await AsyncSandbox.create("host", client=client)
        assert (await sandbox.code.run("1 + 1")).text == "2"
        times.append(time.perf_counter() - begun)
        await sandbox.kill()
    return times


async def _warm(sandbox: AsyncSandbox) -> list[float]:
    times = []
    for _ in range(WARM):
        begun = time.perf_counter()
        assert (await sandbox.code.run("1 + 1")).text == "2"
        times.append(time.perf_counter() - begun)
    return times


async def _starts(sandbox: AsyncSandbox) -> dict[str, Value]:
    """A context with its first result, beside the start and end of the bare interpreter."""
    times = []
    for _ in range(STARTS):
        begun = time.perf_counter()
        context = await sandbox.code.create_context()
        await sandbox.code.run("1 + 1", context=context)
        times.append(time.perf_counter() - begun)
        await sandbox.code.delete_context(context)
    bare = float((await sandbox.code.run(START_PROBE)).text)
    context_ms = sorted(times)[len(times) // 2] * 1000
    return {
        "context_p50_ms": round(context_ms, 1),
        "bare_python_p50_ms": round(bare, 1),
        "context_beyond_python_ms": round(context_ms - bare, 1),
    }


async def _memory(sandbox: AsyncSandbox) -> dict[str, Value]:
    """Proportional memory of Python contexts and of as many bare interpreters."""
    before = set(pids())
    contexts = [await sandbox.code.create_context() for _ in range(CONTEXTS)]
    await asyncio.gather(*(sandbox.code.run("1 + 1", context=context) for context in contexts))
    ours = _average(before)
    await asyncio.gather(*(sandbox.code.delete_context(context) for context in contexts))
    before = set(pids())
    bare = [await sandbox.commands.start(["python3", "-c", BARE]) for _ in range(CONTEXTS)]
    await asyncio.sleep(0.5)
    theirs = _average(before)
    await asyncio.gather(*(sandbox.commands.interrupt(command) for command in bare))
    return {
        "context_mib": round(ours, 2),
        "bare_python_mib": round(theirs, 2),
        "context_beyond_python_mib": round(ours - theirs, 2),
    }


def _average(before: set[int]) -> float:
    found = [pid for pid in pids() if pid not in before and "python" in executable(pid)]
    return sum(map(proportional_kib, found)) / max(1, len(found)) / 1024


async def _throughput(sandbox: AsyncSandbox) -> dict[str, Value]:
    """Many small prints; every byte is counted."""
    total = 0

    def count(text: str) -> None:
        nonlocal total
        total += len(text)

    lines = MEGABYTES * 1_000_000 // (len(LINE) + 1)
    begun = time.perf_counter()
    await sandbox.code.run(f"for _ in range({lines}): print({LINE!r})", on_stdout=count, capture=False)
    seconds = time.perf_counter() - begun
    return {
        "printed_mb": MEGABYTES,
        "arrived_bytes": total,
        "printed_whole": total == lines * (len(LINE) + 1),
        "printed_mb_per_second": round(MEGABYTES / seconds, 1),
    }
