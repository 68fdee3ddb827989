# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Virtual machines: from a create to the first command's end, pause and resume, a snapshot that goes on
as several children, and the memory that an idle machine has to itself. Guests have 256 MiB."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.harness import serving
from benchmarks.report import Report, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.runtimes.microvm import host, kernel
from support import microvm
from support.server import Server

CREATES = 12
PAUSES = 5
CHILDREN = 5
RESOURCES = {"memory": "256Mi"}


async def measure() -> Report:
    if reason := microvm.why_not():
        raise SystemExit(f"no virtual machines here: {reason}")
    async with serving("microvm") as (server, client):
        await (await _create(client)).kill()  # makes the template
        figures: dict[str, int | float | str] = {"creates": CREATES, "pauses": PAUSES, "children": CHILDREN}
        figures |= await _creates(client)
        figures |= await _pauses(client)
        figures |= await _children(server, client)
    accelerator, _ = host.accelerator("auto", kernel.find(microvm.FOLDER / "kernels"))
    return Report("microvm", figures, {"image": "host", "memory": "256Mi", "accelerator": accelerator})


async def _create(client: AsyncClient, **source: str) -> AsyncSandbox:
    source = source or {"image": "host"}
    return await AsyncSandbox.create(client=client, resources=RESOURCES, **source)  # type: ignore[arg-type]


async def _first_command(box: AsyncSandbox) -> None:
    (await box.commands.run(["true"])).check()


async def _creates(client: AsyncClient) -> dict[str, int | float | str]:
    """The spare machine has time to be made, as it has between requests of one caller."""
    times, again = [], []
    for _ in range(CREATES):
        await asyncio.sleep(2)
        begun = time.perf_counter()
        box = await _create(client)
        await _first_command(box)
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await _first_command(box)
        again.append(time.perf_counter() - begun)
        await box.kill()
    return {**milliseconds("create_", times), **milliseconds("exec_", again)}


async def _pauses(client: AsyncClient) -> dict[str, int | float | str]:
    paused, resumed = [], []
    box = await _create(client)
    for _ in range(PAUSES):
        begun = time.perf_counter()
        await box.pause()
        paused.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await box.resume()
        await _first_command(box)
        resumed.append(time.perf_counter() - begun)
    await box.kill()
    return {**milliseconds("pause_", paused), **milliseconds("resume_", resumed)}


async def _children(server: Server, client: AsyncClient) -> dict[str, int | float | str]:
    source = await _create(client)
    begun = time.perf_counter()
    snapshot = await source.snapshot()
    taken = time.perf_counter()
    children = await asyncio.gather(*(_create(client, snapshot=snapshot.id) for _ in range(CHILDREN)))
    await asyncio.gather(*map(_first_command, children))
    ended = time.perf_counter()
    await asyncio.sleep(2)
    private = [_private_mib(server, box.id) for box in children]
    for box in (source, *children):
        await box.kill()
    await client.snapshots.delete(snapshot.id)
    return {
        "snapshot_ms": round((taken - begun) * 1000, 1),
        "fork_ms": round((ended - begun) * 1000, 1),
        "private_mib": round(sum(private) / len(private), 1),
    }


def _private_mib(server: Server, sandbox_id: str) -> float:
    """Memory that is this machine's alone: what it has not in common with its template."""
    pid = (server.data_dir / "microvms" / sandbox_id / "process").read_text().split()[0]
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))
