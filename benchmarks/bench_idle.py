# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Memory that one idle sandbox costs besides the user's own process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.sandbox import AsyncSandbox
from support.traces import descendants, executable, pids, proportional_kib, sandbox_processes

SANDBOXES = 20


async def measure() -> Report:
    async with serving() as (server, client):
        assert server.process is not None
        first = await AsyncSandbox.create("host", client=client)
        (await first.commands.run(["true"])).check()
        await asyncio.sleep(1)
        pid, already = server.process.pid, set(pids())
        before = proportional_kib(pid)
        boxes = [await AsyncSandbox.create("host", client=client) for _ in range(SANDBOXES)]
        await asyncio.gather(*(box.commands.run(["true"]) for box in boxes))
        await asyncio.sleep(2)
        new = (sandbox_processes(server.data_dir) | descendants(pid)) - already
        daemons = [p for p in new if "execd" in executable(p)]
        users = [p for p in new if executable(p).endswith("/tail")]
        helpers = new - set(daemons) - set(users)
        server_growth = max(0, proportional_kib(pid) - before) / SANDBOXES
        daemon = sum(map(proportional_kib, daemons)) / SANDBOXES
        resident = sum(map(_resident_kib, daemons)) / max(1, len(daemons))
        helper = sum(map(proportional_kib, helpers)) / SANDBOXES
    figures = {
        "sandboxes": SANDBOXES,
        "outside_users_process_mib": round((daemon + helper + server_growth) / 1024, 2),
        "daemon_mib": round(daemon / 1024, 2),
        "daemon_resident_mib": round(resident / 1024, 2),
        "helpers_mib": round(helper / 1024, 2),
        "server_growth_mib": round(server_growth / 1024, 2),
        "daemons": len(daemons),
        "helpers": len(helpers),
    }
    return Report("idle", figures, {**conditions(), "measure": "proportional set size"})


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
