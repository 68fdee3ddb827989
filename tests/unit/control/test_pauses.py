# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pause and resume, refused where they do not fit, and never left halfway."""

from __future__ import annotations

import asyncio

import pytest

from casulo.control import reconcile
from casulo.model.errors import Code, Conflict, NotFound, RuntimeFailure, Unsupported
from casulo.model.sandbox import Exit
from casulo.model.states import State
from support.memory_runtime import MemoryRuntime

from .conftest import Lab, Service


async def test_pause_and_resume_five_times(service: Service) -> None:
    made = await service.create()
    for _ in range(5):
        assert (await service.lifecycle.pause(made.id)).status.reason == "CONTAINER_PAUSED"
        assert service.world.boxes[made.id].frozen
        assert (await service.lifecycle.resume(made.id)).status.state is State.RUNNING
        assert not service.world.boxes[made.id].frozen
    assert await service.lifecycle.endpoint(made.id, 44772) == made.handle


async def test_a_second_pause_and_a_first_resume_are_conflicts(service: Service) -> None:
    made = await service.create()
    with pytest.raises(Conflict) as running:
        await service.lifecycle.resume(made.id)
    assert running.value.code == Code.SANDBOX_NOT_PAUSED
    await service.lifecycle.pause(made.id)
    with pytest.raises(Conflict) as paused:
        await service.lifecycle.pause(made.id)
    assert paused.value.code == Code.SANDBOX_NOT_RUNNING
    with pytest.raises(NotFound):
        await service.lifecycle.pause("unknown")


async def test_pauses_at_the_same_time_give_one_winner(service: Service) -> None:
    made = await service.create()
    outcomes = await asyncio.gather(
        *(service.lifecycle.pause(made.id) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7


async def test_a_runtime_without_the_ability_refuses(lab: Lab) -> None:
    runtime = MemoryRuntime(lab.world, can_pause=False)
    runtime.missing = {"pause": "this kernel has no freezer"}
    service = await lab.service(runtime)
    made = await service.create()
    with pytest.raises(Unsupported) as failure:
        await service.lifecycle.pause(made.id)
    assert failure.value.code == Code.NOT_SUPPORTED
    assert failure.value.hint == "this kernel has no freezer"
    assert await service.lifecycle.get(made.id) == made


@pytest.mark.parametrize("error", [RuntimeFailure("busy"), OSError(5, "Input/output error")])
async def test_a_failed_pause_settles_to_what_is_true(service: Service, error: Exception) -> None:
    made = await service.create()
    service.runtime.pause_error = error
    with pytest.raises(RuntimeFailure) as failure:
        await service.lifecycle.pause(made.id)
    assert failure.value.code == Code.SANDBOX_PAUSE_FAILED
    assert (await service.lifecycle.get(made.id)).status.state is State.RUNNING
    service.runtime.pause_error = None
    await service.lifecycle.pause(made.id)
    service.runtime.pause_error = error
    with pytest.raises(RuntimeFailure) as failure:
        await service.lifecycle.resume(made.id)
    assert failure.value.code == Code.SANDBOX_RESUME_FAILED
    assert (await service.lifecycle.get(made.id)).status.state is State.PAUSED


async def test_a_failed_pause_whose_truth_is_not_to_be_had_is_looked_at_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_LAST_LOOK_SECONDS", 0.0)
    made = await service.create()
    service.runtime.pause_error = service.runtime.inspect_error = OSError("the engine is away")
    with pytest.raises(RuntimeFailure) as failure:
        await service.lifecycle.pause(made.id)
    assert failure.value.code == Code.SANDBOX_PAUSE_FAILED
    marked = await service.lifecycle.get(made.id)
    assert marked.status.reason == "CONTAINER_STATE_UNKNOWN" and "away" in marked.status.message
    service.runtime.pause_error = service.runtime.inspect_error = None
    async with asyncio.timeout(8):
        while (await service.lifecycle.get(made.id)).status.state is not State.RUNNING:
            await asyncio.sleep(0.02)
    await service.lifecycle.pause(made.id)


async def test_a_pause_goes_on_when_its_caller_leaves(service: Service) -> None:
    made = await service.create()
    service.runtime.may_pause.clear()
    pausing = asyncio.create_task(service.lifecycle.pause(made.id))
    await service.in_state(made.id, State.PAUSING)
    pausing.cancel()
    service.runtime.may_pause.set()
    await service.in_state(made.id, State.PAUSED)


async def test_an_end_during_a_pause_is_noticed(service: Service) -> None:
    made = await service.create()
    service.runtime.may_pause.clear()
    pausing = asyncio.create_task(service.lifecycle.pause(made.id))
    await service.in_state(made.id, State.PAUSING)
    service.runtime.end(made.id, Exit(code=3))
    service.runtime.may_pause.set()
    await asyncio.gather(pausing, return_exceptions=True)
    assert (await service.in_state(made.id, State.FAILED)).exit == Exit(code=3)
