# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How fast a command's output arrives through the client, and what it costs the daemon in memory."""

from __future__ import annotations

import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.sandbox import AsyncSandbox
from casulo.client.stream import Output
from support.traces import daemon_peak_kib

GIB = 1 << 30
COMMAND = "head -c 1G /dev/zero | base64 -w 76"
EXPECTED = (GIB + 2) // 3 * 4 + -(-((GIB + 2) // 3 * 4) // 76)


async def measure() -> Report:
    limits = {"cpu": "2", "memory": "2Gi"}
    async with (
        serving() as (server, client),
        await AsyncSandbox.create("host", resources=limits, client=client) as sandbox,
    ):
        (await sandbox.commands.run("true")).check()
        idle = daemon_peak_kib(server.data_dir, sandbox.id)
        begun = time.perf_counter()
        received = 0
        async for item in sandbox.commands.stream(COMMAND):
            if isinstance(item, Output):
                received += len(item.data)
        seconds = time.perf_counter() - begun
        peak = daemon_peak_kib(server.data_dir, sandbox.id)
    figures = {
        "megabytes": round(received / 1e6, 1),
        "complete": received == EXPECTED,
        "megabytes_per_second": round(received / 1e6 / seconds, 1),
        "daemon_mib_above_idle": round((peak - idle) / 1024, 1),
    }
    return Report("stream", figures, {**conditions(), "command": COMMAND, "framing": "raw"})
