# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""After kill -9 at any point: nothing lost, nothing orphaned, every row says what is true."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from casulo.control import reconcile
from casulo.model.errors import RuntimeFailure, Unavailable, Unsupported
from casulo.model.sandbox import Exit, Sandbox
from casulo.model.states import State
from support.memory_runtime import Box, MemoryRuntime

from .conftest import Lab, Service


async def consistent(service: Service) -> None:
    """Rows and traces name the same sandboxes, and agree on what each is."""
    await service.lifecycle.settled()
    rows = {sandbox.id: sandbox for sandbox in await service.store.all()}
    assert set(rows) == set(service.world.boxes)
    for sandbox_id, sandbox in rows.items():
        box = service.world.boxes[sandbox_id]
        expected = State.PAUSED if box.frozen else State.RUNNING
        if not box.alive:
            expected = State.TERMINATED if box.exit and box.exit.code == 0 else State.FAILED
        assert sandbox.status.state is expected
        assert sandbox.handle == box.handle


async def test_running_and_paused_ones_go_on(lab: Lab) -> None:
    first = await lab.service()
    running, paused = await first.create(), await first.create()
    await first.lifecycle.pause(paused.id)
    await lab.crash(first)
    second = await lab.service()
    await consistent(second)
    assert await second.lifecycle.get(running.id) == running
    await second.lifecycle.resume(paused.id)
    second.runtime.end(running.id, Exit(code=0))
    await second.in_state(running.id, State.TERMINATED)


@pytest.mark.parametrize("exit_", [Exit(code=0), Exit(code=7), None])
async def test_an_end_while_no_server_ran_is_noticed(lab: Lab, exit_: Exit | None) -> None:
    first = await lab.service()
    made = await first.create()
    await lab.crash(first)
    lab.world.boxes[made.id] = replace(lab.world.boxes[made.id], alive=False, exit=exit_)
    second = await lab.service()
    await consistent(second)
    assert (await second.lifecycle.get(made.id)).exit == exit_


async def test_all_traces_gone_is_an_end_too(lab: Lab) -> None:
    first = await lab.service()
    made = await first.create()
    await lab.crash(first)
    lab.world.boxes.clear()
    second = await lab.service()
    assert (await second.lifecycle.get(made.id)).status.state is State.FAILED
    await second.lifecycle.delete(made.id)


async def test_a_start_cut_short_is_started_over(lab: Lab) -> None:
    first = await lab.service()
    first.runtime.may_create.clear()
    creating = [asyncio.create_task(first.create(metadata={"n": str(n)})) for n in range(6)]
    while len(await first.store.all()) < 6:
        await asyncio.sleep(0.005)
    await lab.crash(first)
    await asyncio.gather(*creating, return_exceptions=True)
    assert len(lab.world.boxes) == 4, "four were being made, two waited"
    second = await lab.service()
    await consistent(second)
    assert len(lab.world.boxes) == 6


async def test_a_removal_cut_short_is_finished(lab: Lab) -> None:
    first = await lab.service()
    made = await first.create()
    first.runtime.may_destroy.clear()
    deleting = asyncio.create_task(first.lifecycle.delete(made.id))
    await first.in_state(made.id, State.STOPPING)
    await lab.crash(first)
    await asyncio.gather(deleting, return_exceptions=True)
    second = await lab.service()
    await second.is_gone(made.id)


@pytest.mark.parametrize("done", [False, True])
async def test_a_pause_cut_short_settles_to_what_is_true(lab: Lab, done: bool) -> None:
    first = await lab.service()
    made = await first.create()
    first.runtime.may_pause.clear()
    pausing = asyncio.create_task(first.lifecycle.pause(made.id))
    await first.in_state(made.id, State.PAUSING)
    await lab.crash(first)
    await asyncio.gather(pausing, return_exceptions=True)
    lab.world.boxes[made.id].frozen = done
    await consistent(await lab.service())


@pytest.mark.parametrize("done", [False, True])
async def test_a_resume_cut_short_settles_to_what_is_true(lab: Lab, done: bool) -> None:
    first = await lab.service()
    made = await first.create()
    await first.lifecycle.pause(made.id)
    first.runtime.may_pause.clear()
    resuming = asyncio.create_task(first.lifecycle.resume(made.id))
    await first.in_state(made.id, State.RESUMING)
    await lab.crash(first)
    await asyncio.gather(resuming, return_exceptions=True)
    lab.world.boxes[made.id].frozen = not done
    await consistent(await lab.service())


async def test_traces_without_a_row_are_removed(lab: Lab) -> None:
    lab.world.boxes["stranger"] = Box()
    second = await lab.service()
    await consistent(second)
    assert not lab.world.boxes


async def test_one_unclear_sandbox_is_marked_and_looked_at_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_LAST_LOOK_SECONDS", 0.0)
    first = await lab.service()
    made = await first.create()
    await lab.crash(first)
    runtime = MemoryRuntime(lab.world)
    runtime.inspect_error = OSError("cannot look")
    second = await lab.service(runtime)
    marked = await second.lifecycle.get(made.id)
    assert marked.status.state is State.RUNNING
    assert marked.status.reason == "CONTAINER_STATE_UNKNOWN"
    assert "cannot look" in marked.status.message
    runtime.inspect_error = None

    async def clear() -> Sandbox:
        while (found := await second.lifecycle.get(made.id)).status.reason != "CONTAINER_RUNNING":
            await asyncio.sleep(0.02)
        return found

    async with asyncio.timeout(8):
        assert (await clear()).status.message == ""


async def test_a_sandbox_of_a_runtime_that_is_gone_is_kept_and_marked(lab: Lab) -> None:
    first = await lab.service(MemoryRuntime(lab.world, "other"))
    made = await first.create()
    await lab.crash(first)
    second = await lab.service()
    marked = await second.lifecycle.get(made.id)
    assert marked.status.reason == "CONTAINER_STATE_UNKNOWN" and "other" in marked.status.message
    with pytest.raises(Unavailable):
        await second.lifecycle.delete(made.id)


async def test_a_start_over_that_fails_leaves_nothing(lab: Lab) -> None:
    first = await lab.service()
    first.runtime.may_create.clear()
    creating = asyncio.create_task(first.create())
    while not lab.world.boxes:
        await asyncio.sleep(0.005)
    await lab.crash(first)
    await asyncio.gather(creating, return_exceptions=True)
    runtime = MemoryRuntime(lab.world)
    runtime.create_error = RuntimeFailure("still broken")
    second = await lab.service(runtime)
    await consistent(second)
    assert not lab.world.boxes


async def test_a_default_runtime_that_cannot_open_stops_the_server(lab: Lab) -> None:
    runtime = MemoryRuntime(lab.world)
    runtime.open_error = Unsupported("no user namespaces", hint="sysctl …")
    service = await lab.service(runtime, opened=False)
    with pytest.raises(Unsupported, match="no user namespaces"):
        await service.lifecycle.open()


@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_at_a_random_moment(lab: Lab, seed: int) -> None:
    chance = random.Random(seed)
    first = await lab.service()
    kept = [await first.create() for _ in range(3)]

    async def act(number: int) -> None:
        await asyncio.sleep(chance.random() / 50)
        victim = kept[number % 3].id
        action = chance.choice(["create", "delete", "pause", "resume"])
        if action == "create":
            await first.create()
        else:
            await getattr(first.lifecycle, action)(victim)

    acts = [asyncio.create_task(act(number)) for number in range(20)]
    await asyncio.sleep(chance.random() / 30)
    await lab.crash(first)
    for task in acts:
        task.cancel()
    await asyncio.gather(*acts, return_exceptions=True)
    await consistent(await lab.service())
