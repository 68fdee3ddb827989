# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Virtual machines: from a create to the first command's end with its milestones, pause and resume, forks of
a running machine, many machines at once, and the memory and processor time that an idle one takes. Guests
have 256 MiB."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import NETWORK, serving
from benchmarks.report import Report, milliseconds, quantile
from casulo.client import Client, Connection, Sandbox
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.runtimes.microvm import host, kernel
from support import microvm
from support.server import Server

CREATES = 8
COLD = 3
PAUSES = 4
FORKS = 2
CHILDREN = 5
MANY_CHILDREN = 20
MANY = 50
AT_ONCE = 4
IDLE_SECONDS = 4.0
RESOURCES = {"memory": "256Mi"}
Figures = dict[str, int | float | str]


async def measure() -> Report:
    if reason := microvm.why_not():
        raise SystemExit(f"no virtual machines here: {reason}")
    figures: Figures = {"creates": CREATES, "pauses": PAUSES, "forks": FORKS, "children": CHILDREN}
    async with serving("microvm") as (server, client):
        await asyncio.to_thread(_make_template, server)
        figures |= await _creates(server, client, "create_", CREATES, 2.0)
        figures |= await _pauses(client)
        figures |= await _forks(server, client)
    async with serving("microvm", _without_spare()) as (server, client):
        figures |= await _creates(server, client, "cold_", COLD, 0.0)
        figures |= await _many(server, client)
    async with serving("microvm", _with_pool()) as (server, client):
        figures |= await _hits(client)
    accelerator, _ = host.accelerator("auto", kernel.find(microvm.FOLDER / "kernels"))
    return Report("microvm", figures, {"image": "host", "memory": "256Mi", "accelerator": accelerator})


def _without_spare() -> str:
    return microvm.tables(NETWORK, "").replace("[microvm]\n", "[microvm]\nspare = 0\n")


def _with_pool() -> str:
    pool = "[pools.named.bench]\nimage = 'host'\nresources = { memory = '256Mi' }\nmin = 2\nmax = 2\n"
    return _without_spare() + pool


async def _hits(client: AsyncClient) -> Figures:
    """Out of a pool; its members are not made anew while somebody is being served."""
    times = []
    for _ in range(CREATES):
        while (await client.pools.get("bench")).available < 2:
            await asyncio.sleep(0.2)
        await asyncio.sleep(1)
        begun = time.perf_counter()
        box = await _create(client)
        await _first_command(box)
        times.append(time.perf_counter() - begun)
        await box.kill()
    return milliseconds("pool_hit_", times)


def _make_template(server: Server) -> None:
    """It may take minutes, where the image's disk has to be made first."""
    with Client(Connection(server.url, server.api_key, request_timeout=microvm.SECONDS)) as client:
        Sandbox.create("host", client=client, resources=RESOURCES).kill()


async def _create(client: AsyncClient) -> AsyncSandbox:
    return await AsyncSandbox.create("host", client=client, resources=RESOURCES)


async def _first_command(box: AsyncSandbox) -> None:
    (await box.commands.run(["true"])).check()


async def _creates(server: Server, client: AsyncClient, name: str, count: int, rest: float) -> Figures:
    """With a rest the spare machine has time to be made, as it has between requests of one caller."""
    answered, times, again, seen = [], [], [], len(server.output)
    for _ in range(count):
        await asyncio.sleep(rest)
        begun = time.perf_counter()
        box = await _create(client)
        answered.append(time.perf_counter() - begun)
        await _first_command(box)
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await _first_command(box)
        again.append(time.perf_counter() - begun)
        await box.kill()
    figures = {**milliseconds(name, times), **milliseconds(f"{name}answered_", answered)}
    for step, values in _steps(server.output[seen:]).items():
        figures[f"{name}{step}_p50_ms"] = quantile(values, 0.5)
    return {**figures, **milliseconds(f"{name}exec_", again)}


def _steps(output: str) -> dict[str, list[float]]:
    """What the server logged of starts: the monitor's process, the load of the state, machine, daemon."""
    found: dict[str, list[float]] = {}
    for line in output.splitlines():
        if "microvm.launched" in line or "microvm.started" in line:
            for name, value in re.findall(r"(\w+)_ms=([\d.]+)", line):
                found.setdefault(name, []).append(float(value))
    return found


async def _pauses(client: AsyncClient) -> Figures:
    paused, answered, resumed = [], [], []
    box = await _create(client)
    await _first_command(box)
    for _ in range(PAUSES):
        begun = time.perf_counter()
        await box.pause()
        paused.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await box.resume()
        answered.append(time.perf_counter() - begun)
        await _first_command(box)
        resumed.append(time.perf_counter() - begun)
    await box.kill()
    return {
        **milliseconds("pause_", paused),
        **milliseconds("resume_answered_", answered),
        **milliseconds("resume_", resumed),
    }


async def _forks(server: Server, client: AsyncClient) -> Figures:
    source = await _create(client)
    await _first_command(source)
    answered, times, private = [], [], []
    for _ in range(FORKS):
        children = await _forked(source, CHILDREN, answered, times)
        await asyncio.sleep(2)
        private += [_private_mib(server, box.id) for box in children]
        await _end(children)
    figures: Figures = {**milliseconds("fork_answered_", answered), **milliseconds("fork_", times)}
    children = await _forked(source, MANY_CHILDREN, [], times)
    await _end([source, *children])
    return {
        **figures,
        f"fork_of_{MANY_CHILDREN}_ms": round(times[-1] * 1000, 1),
        "private_mib": round(sum(private) / len(private), 1),
    }


async def _forked(
    source: AsyncSandbox, count: int, answered: list[float], times: list[float]
) -> list[AsyncSandbox]:
    begun = time.perf_counter()
    children = list(await source.fork(count))
    answered.append(time.perf_counter() - begun)
    await asyncio.gather(*map(_first_command, children))
    times.append(time.perf_counter() - begun)
    return children


async def _end(boxes: Sequence[AsyncSandbox]) -> None:
    for box in boxes:
        await box.kill()


async def _many(server: Server, client: AsyncClient) -> Figures:
    turns, begun = asyncio.Semaphore(AT_ONCE), time.perf_counter()

    async def one() -> AsyncSandbox:
        async with turns:
            return await _create(client)

    boxes = await asyncio.gather(*(one() for _ in range(MANY)))
    made = time.perf_counter()
    await asyncio.gather(*map(_first_command, boxes))
    ended = time.perf_counter()
    await asyncio.sleep(2)
    before = [_processor_ms(server, box.id) for box in boxes]
    await asyncio.sleep(IDLE_SECONDS)
    used = sum(_processor_ms(server, box.id) for box in boxes) - sum(before)
    private = [_private_mib(server, box.id) for box in boxes]
    begun_again, answers = time.perf_counter(), []
    for box in boxes[::5]:
        await _first_command(box)
        answers.append(time.perf_counter() - begun_again)
        begun_again = time.perf_counter()
    await _end(boxes)
    return {
        "many": MANY,
        "many_answered": len(boxes),
        "many_made_s": round(made - begun, 1),
        "many_all_answered_s": round(ended - made, 1),
        "many_private_mib": round(sum(private) / len(private), 1),
        "many_private_most_mib": round(max(private), 1),
        "many_idle_percent_of_a_core_each": round(used / IDLE_SECONDS / 10 / MANY, 2),
        **milliseconds("many_exec_", answers),
    }


def _pid(server: Server, sandbox_id: str) -> int:
    return int((server.data_dir / "microvms" / sandbox_id / "process").read_text().split()[0])


def _private_mib(server: Server, sandbox_id: str) -> float:
    """Memory that is this machine's alone: what it has not in common with its template."""
    lines = Path(f"/proc/{_pid(server, sandbox_id)}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def _processor_ms(server: Server, sandbox_id: str) -> float:
    fields = Path(f"/proc/{_pid(server, sandbox_id)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
