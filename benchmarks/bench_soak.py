# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A mixed load without a pause: nothing fails, and nothing grows.

`CASULO_SOAK_SECONDS` sets the length; 20 minutes by default. What a server holds while it works is looked
at all the time; it is flat if the last quarter of the time needed no more than the second one.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_leak import _settled
from benchmarks.harness import conditions, serving
from benchmarks.report import Report, Value
from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support.mixture import Mixture, Told
from support.server import Server

SECONDS = float(os.environ.get("CASULO_SOAK_SECONDS", "1200"))
WORKERS = 6
WARM_UP_SECONDS = 5.0
LOOKS = 120
LIFETIME_SECONDS = 60
"""Of the sandboxes that nobody deletes, so that expiry has as much to do as everybody else."""

ROOM = {"memory_mib": 16.0, "descriptors": 16.0, "disk_mib": 64.0}
"""How much more the last quarter may need: what one more sandbox in flight, or a garbage collection, is."""


@dataclass(frozen=True)
class Look:
    """What the server holds at a moment; each living sandbox has one more descriptor, which is no leak."""

    memory_mib: float
    descriptors: float
    disk_mib: float
    watched: float


async def measure() -> Report:
    async with serving(extra="[admission]\nmax_wait_seconds = 50\n") as (server, _):
        await _load(server, WARM_UP_SECONDS).run()
        server.delete_all()
        before = await _settled(server)
        began = time.monotonic()
        looking = asyncio.create_task(_looked(server))
        told = await _load(server, SECONDS).run()
        seconds = time.monotonic() - began
        looking.cancel()
        looks = await looking
        server.delete_all()
        growth = before.growth(await _settled(server))
    return Report("soak", {**_counted(told, seconds), **_judged(looks), **growth}, conditions())


def _counted(told: Told, seconds: float) -> dict[str, Value]:
    return {
        "seconds": round(seconds, 1),
        "operations": sum(told.done.values()),
        "operations_per_second": round(sum(told.done.values()) / seconds, 1),
        "failed": len(told.faults),
        "failures": "; ".join(f"{n} times {fault}" for fault, n in Counter(told.faults).most_common(5)),
        **dict(told.done),
    }


async def _looked(server: Server) -> list[Look]:
    """Until cancelled."""
    looks: list[Look] = []
    try:
        while True:
            await asyncio.sleep(SECONDS / LOOKS)
            looks.append(await asyncio.to_thread(_look, server))
    except asyncio.CancelledError:
        return looks


def _look(server: Server) -> Look:
    assert server.process is not None
    process = Path("/proc") / str(server.process.pid)
    targets = [_target(entry) for entry in (process / "fd").iterdir()]
    watched = targets.count("anon_inode:[pidfd]")
    status = (process / "status").read_text().splitlines()
    memory = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))
    return Look(memory, len(targets) - watched, _used(server.data_dir) / 1024**2, watched)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


def _used(place: Path) -> int:
    """Bytes on disk of the server's own files and its sandboxes'; what goes meanwhile does not count."""
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _judged(looks: Sequence[Look]) -> dict[str, Value]:
    """The medians of two quarters beside each other."""
    quarter = max(1, len(looks) // 4)
    early, late = looks[quarter : 2 * quarter] or looks, looks[-quarter:]
    figures: dict[str, Value] = {}
    grown = []
    for name, room in ROOM.items():
        first, last = (statistics.median(getattr(look, name) for look in part) for part in (early, late))
        figures |= {f"{name}_second_quarter": round(first, 1), f"{name}_last_quarter": round(last, 1)}
        if last > first + room:
            grown.append(name)
    most = max((look.watched for look in looks), default=0)
    return {**figures, "most_sandboxes": most, "flat": not grown, "grown": " ".join(grown)}


def _load(server: Server, seconds: float) -> Mixture:
    def client() -> AsyncClient:
        return AsyncClient(Connection(server.url, server.api_key, request_timeout=60))

    return Mixture(client, WORKERS, time.monotonic() + seconds, lifetime=LIFETIME_SECONDS)
