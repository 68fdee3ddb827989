# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A mixed load without a pause: nothing fails, and nothing grows.

`CASULO_SOAK_SECONDS` sets the length; 20 minutes by default.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.bench_leak import _settled
from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support.mixture import Mixture
from support.server import Server

SECONDS = float(os.environ.get("CASULO_SOAK_SECONDS", "1200"))
WORKERS = 6
WARM_UP_SECONDS = 5.0


async def measure() -> Report:
    async with serving() as (server, _):
        await _load(server, WARM_UP_SECONDS).run()
        server.delete_all()
        before, memory = await _settled(server), _resident_mib(server)
        began = time.monotonic()
        told = await _load(server, SECONDS).run()
        seconds = time.monotonic() - began
        server.delete_all()
        growth = before.growth(await _settled(server))
        figures = {
            "seconds": round(seconds, 1),
            "operations": sum(told.done.values()),
            "operations_per_second": round(sum(told.done.values()) / seconds, 1),
            "failed": len(told.faults),
            "first_failure": told.faults[0] if told.faults else "",
            **dict(told.done),
            **growth,
            "server_mib_before": memory,
            "server_mib_after": _resident_mib(server),
        }
    return Report("soak", figures, conditions())


def _load(server: Server, seconds: float) -> Mixture:
    def client() -> AsyncClient:
        return AsyncClient(Connection(server.url, server.api_key, request_timeout=60))

    return Mixture(client, WORKERS, time.monotonic() + seconds)


def _resident_mib(server: Server) -> float:
    assert server.process is not None
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0
