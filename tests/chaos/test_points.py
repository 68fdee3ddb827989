# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Every operation of several steps is cut short at random points by `kill -9`, and everything converges.

In each round all operations run beside each other, and each is hit at a random moment of its own usual
time. `./dev chaos` does 30 rounds of each kind; the seed is printed and in the message of a failure, and
`CASULO_CHAOS_SEED` repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Callable

import pytest

from casulo.client.lifecycle import AsyncClient
from support.chaos import operations
from support.chaos.ground import Ground, kill, until
from support.chaos.operations import Operation
from support.server import Server
from support.traces import Traces, count

POOL = "[pools.named.usual]\nimage = 'host'\nmin = 2\nmax = 2\n"
POOLED = ("fake", "local", "gvisor")
TABLES = (
    "[sandbox]\nstop_grace_seconds = 0.2\nstart_timeout_seconds = 120\n[admission]\nmax_wait_seconds = 120\n"
)
ROUNDS = int(os.environ.get("CASULO_CHAOS_ROUNDS", "0"))
FEW = {"fake": 2, "local": 2, "gvisor": 1, "docker": 1}
OF_THE_PROCESS = ("server_descriptors_more", "server_threads_more")  # which was killed, and is another now
Victim = Callable[[Ground, list[Operation]], None]


PLACES = ("fake", "local", "gvisor", "docker", *(("microvm",) if ROUNDS else ()))
"""Emulated machines take too long for every run of the tests; `./dev chaos` has them."""


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ground(request: pytest.FixtureRequest, place: str, new_server: Callable[..., Server]) -> Ground:
    seed = int(os.environ.get("CASULO_CHAOS_SEED", random.randrange(10**6)))
    print(f"seed {seed} on {place}")
    engine = request.getfixturevalue("engine") if place == "docker" else None
    pooled = place in POOLED
    counted = "spare = 0\n" if place == "microvm" else ""  # one that is on its way looks like a leak
    return Ground(new_server(place, TABLES + (POOL if pooled else ""), counted), seed, place, engine)


@pytest.mark.timeout(3600)
async def test_the_server_is_killed(ground: Ground) -> None:
    with ground.told():
        before, usual = await _rehearsed(ground)
        for _ in range(_rounds(ground)):
            acting = await _prepared(ground)
            running = [asyncio.create_task(each) for each in _timed(ground, acting, usual)]
            await asyncio.sleep(max(usual.values()))
            ground.note("the server is killed")
            await asyncio.to_thread(ground.server.crash)
            if ground.dice.random() < 0.3:
                ground.note("the egress process is killed")
                kill(ground.egress())
            await asyncio.wait_for(asyncio.gather(*running), 120)
            await asyncio.to_thread(ground.server.start)
            ground.note("the server is there again")
            await _judged(ground, acting)
        await _nothing_is_left(ground, before)


@pytest.mark.timeout(3600)
async def test_daemons_are_killed(ground: Ground) -> None:
    with ground.told():
        before, usual = await _rehearsed(ground)
        for _ in range(_rounds(ground)):
            acting = await _prepared(ground)
            await asyncio.gather(*(_without_daemon(ground, each, usual[each.name]) for each in acting))
            await _judged(ground, acting)
        await _nothing_is_left(ground, before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("place", ["local"])
async def test_the_egress_process_is_killed(ground: Ground) -> None:
    with ground.told():
        before, usual = await _rehearsed(ground)
        for _ in range(_rounds(ground)):
            acting = [operations.Policy(ground) for _ in range(2)]
            async with ground.client() as client:
                await asyncio.gather(*(each.prepare(client) for each in acting))
            running = [asyncio.create_task(each.run()) for each in acting]
            await asyncio.sleep(ground.dice.uniform(0, usual["policy change"]))
            pids = ground.egress()
            assert pids, "no egress process was found"
            ground.note("the egress process is killed")
            kill(pids)
            await asyncio.gather(*running)
            for each in acting:
                each.refusal = None  # it may say that the process is away
            await _judged(ground, list(acting))
        await _nothing_is_left(ground, before)


def _rounds(ground: Ground) -> int:
    return ROUNDS or FEW[ground.place]


async def _rehearsed(ground: Ground) -> tuple[Traces, dict[str, float]]:
    """All operations with nobody disturbing: what there is before, and how long each usually takes."""
    acting = await _prepared(ground)
    seconds = await asyncio.gather(*(_seconds(each) for each in acting))
    assert all(each.answered for each in acting), [str(each.refusal) for each in acting]
    await _judged(ground, acting)
    return await _settled(ground), {each.name: s for each, s in zip(acting, seconds, strict=True)}


async def _seconds(operation: Operation) -> float:
    began = time.monotonic()
    await operation.run()
    return time.monotonic() - began


async def _prepared(ground: Ground) -> list[Operation]:
    acting = operations.of(ground)
    async with ground.client() as client:
        await asyncio.gather(*(each.prepare(client) for each in acting))
        await _pool_is_full(ground, client)
    return acting


def _timed(ground: Ground, acting: list[Operation], usual: dict[str, float]) -> list:
    """The calls, each begun so that the end of all hits it somewhere in its usual time."""
    longest = max(usual.values())
    return [_after(longest - usual[each.name] * ground.dice.random(), each) for each in acting]


async def _after(seconds: float, operation: Operation) -> None:
    await asyncio.sleep(seconds)
    await operation.run()


async def _without_daemon(ground: Ground, operation: Operation, usual: float) -> None:
    """Run it, and meanwhile kill the main process of its sandbox, or one of those just being made."""
    running = asyncio.create_task(operation.run())
    await asyncio.sleep(usual * ground.dice.random())
    named = bool(operation.box) and not isinstance(operation, operations.Create)
    pids = await asyncio.to_thread(ground.processes, operation.box) if named else ground.strangers()
    chosen = pids[:1] if named else ground.dice.sample(pids, min(1, len(pids)))
    ground.note(f"the daemon of {operation.name} {operation.box} is killed: {chosen}")
    kill(chosen)
    operation.died = True
    await running


async def _judged(ground: Ground, acting: list[Operation]) -> None:
    async with ground.client() as client:
        await asyncio.gather(*(each.judge(client) for each in acting))
        left = {item.id for item in await client.list(page_size=100)}
    # A create whose caller never learned of it, with a daemon that was killed, has nobody to delete it.
    await asyncio.to_thread(ground.server.delete_all)
    died = any(each.died for each in acting)
    assert died or not left, f"nobody asked for {left}"


async def _pool_is_full(ground: Ground, client: AsyncClient) -> None:
    async def full() -> bool:
        return (await client.pools.get("usual")).available == 2

    if ground.place in POOLED:
        await until(full, "filling the pool")


async def _nothing_is_left(ground: Ground, before: Traces) -> None:
    after = await _settled(ground, before)
    if grown := _grown(before, after):
        assert ground.server.process
        tree = subprocess.run(
            ["pstree", "-apl", str(ground.server.process.pid)], capture_output=True, text=True
        )
        raise AssertionError(f"{grown}\n{tree.stdout}")
    if ground.engine:
        ours = ground.engine.ours()
        assert not ours["containers"], ours


def _grown(before: Traces, after: Traces) -> dict[str, int]:
    return {kind: n for kind, n in before.growth(after).items() if n > 0 and kind not in OF_THE_PROCESS}


async def _settled(ground: Ground, wanted: Traces | None = None) -> Traces:
    """The count once the pool is full and it stays the same, and, if need be, is as it was."""
    async with ground.client() as client:
        await _pool_is_full(ground, client)
    found: Traces | None = None
    for _ in range(100):
        await asyncio.sleep(0.3)
        assert ground.server.process
        pid = ground.server.process.pid
        previous, found = found, await asyncio.to_thread(count, pid, ground.server.data_dir)
        if found == previous and (wanted is None or not _grown(wanted, found)):
            break
    assert found is not None
    return found
