# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Creating: what comes back, the queue, and what is left when it goes wrong (nothing)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from casulo.model.draft import Draft
from casulo.model.errors import CasuloError, Code, Conflict, NotFound, RuntimeFailure, TimedOut, Unsupported
from casulo.model.sandbox import Exit
from casulo.model.states import State
from casulo.store.query import Query

from .conftest import Lab, Service, until


async def test_a_new_sandbox_runs_and_is_found(service: Service) -> None:
    made = await service.create(metadata={"team": "infra"}, timeout_seconds=600)
    assert made.status.state is State.RUNNING
    assert made.status.reason == "CONTAINER_RUNNING"
    assert made.handle is not None and made.runtime == "memory"
    assert made.expires_at is not None
    assert abs(made.expires_at - made.created_at - timedelta(seconds=600)) < timedelta(seconds=2)
    assert await service.lifecycle.get(made.id) == made
    assert (await service.lifecycle.list(Query())).items == (made,)


async def test_without_a_timeout_it_never_ends_by_itself(service: Service) -> None:
    assert (await service.create()).expires_at is None


async def test_the_intent_is_stored_before_the_runtime_acts(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = asyncio.create_task(service.create())
    await until(lambda: _count(service, 1))
    page = await service.lifecycle.list(Query())
    assert page.items[0].status.state is State.PENDING
    with pytest.raises(NotFound) as failure:
        await service.lifecycle.endpoint(page.items[0].id, 44772)
    assert failure.value.code == Code.ENDPOINT_NOT_READY
    service.runtime.may_create.set()
    await creating


async def _count(service: Service, count: int) -> bool:
    return (await service.lifecycle.list(Query())).total == count


async def test_b039_a_hundred_at_once_all_succeed_in_turn(service: Service) -> None:
    made = await asyncio.gather(*(service.create(metadata={"n": str(n)}) for n in range(100)))
    assert len({sandbox.id for sandbox in made}) == 100
    assert all(sandbox.status.state is State.RUNNING for sandbox in made)
    assert service.runtime.most_creating <= 4
    order = [next(s for s in made if s.id == i).metadata["n"] for i in service.world.created]
    assert order == sorted(order, key=int), "first come, first served"


async def test_the_wait_in_the_queue_does_not_shorten_its_life(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = asyncio.create_task(service.create(timeout_seconds=60))
    await until(lambda: _count(service, 1))
    service.clock.offset = timedelta(seconds=20)
    service.runtime.may_create.set()
    made = await creating
    assert made.expires_at is not None
    assert made.expires_at - made.created_at >= timedelta(seconds=80)


@pytest.mark.parametrize(
    "error", [RuntimeFailure("broken", code=Code.SANDBOX_START_FAILED), OSError(28, "No space left")]
)
async def test_a_failed_create_leaves_nothing(service: Service, error: Exception) -> None:
    service.runtime.create_error = error
    with pytest.raises(type(error)):
        await service.create()
    assert not service.world.boxes
    assert (await service.lifecycle.list(Query())).total == 0


async def test_a_start_that_takes_too_long_is_ended_and_leaves_nothing(lab: Lab) -> None:
    sandbox = lab.settings.sandbox.model_copy(update={"start_timeout_seconds": 0.05})
    lab.settings = lab.settings.model_copy(update={"sandbox": sandbox})
    service = await lab.service()
    service.runtime.may_create.clear()
    with pytest.raises(TimedOut) as failure:
        await service.create()
    assert failure.value.code == Code.SANDBOX_START_TIMEOUT
    assert not service.world.boxes and await _count(service, 0)


async def test_what_the_runtime_cannot_do_is_refused_before_anything_happens(service: Service) -> None:
    for draft in (
        Draft(image="missing"),
        Draft(image="host", extensions={"casulo.isolation": "microvm"}),
        Draft(image="host", resource_limits={"gpu": "1"}),
        Draft(image="host", resource_limits={"disk": "1Gi"}),
    ):
        with pytest.raises(Unsupported):
            await service.lifecycle.create(draft)
    assert not service.world.created and await _count(service, 0)


async def test_a_caller_that_goes_away_leaves_nothing(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = asyncio.create_task(service.create())
    await until(lambda: _count(service, 1))
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await service.lifecycle.settled()
    assert not service.world.boxes and await _count(service, 0)


async def test_a_caller_that_goes_away_from_the_queue_leaves_nothing(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = [asyncio.create_task(service.create()) for _ in range(10)]
    await until(lambda: _count(service, 10))
    for task in creating[4:]:
        task.cancel()
    await until(lambda: _count(service, 4))
    service.runtime.may_create.set()
    made = await asyncio.gather(*creating[:4])
    assert {sandbox.id for sandbox in made} == set(service.world.boxes)


async def test_cancelling_at_any_moment_leaves_all_or_nothing(service: Service) -> None:
    for turns in range(40):
        creating = asyncio.create_task(service.create())
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.sleep(turns / 10_000)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        await service.lifecycle.settled()
        rows = {sandbox.id for sandbox in await service.store.all()}
        assert rows == set(service.world.boxes)
        if creating.cancelled():
            assert not rows
        for sandbox_id in rows:
            await service.lifecycle.delete(sandbox_id)


async def test_b081_an_entrypoint_that_ends_at_once_shows_in_the_state(service: Service) -> None:
    service.runtime.ends_at_once = Exit(code=5)
    made = await service.create()
    ended = await service.in_state(made.id, State.FAILED)
    assert ended.status.reason == "CONTAINER_EXITED_ERROR"
    assert "code 5" in ended.status.message
    assert ended.exit == Exit(code=5)


@pytest.mark.parametrize(
    ("exit_", "state", "words"),
    [
        (Exit(code=0), State.TERMINATED, "code 0"),
        (Exit(code=None, signal="SIGTERM"), State.FAILED, "SIGTERM"),
        (Exit(code=None, signal="SIGKILL", oom=True), State.FAILED, "memory limit"),
        (None, State.FAILED, "without leaving an exit status"),
    ],
)
async def test_how_it_ended_is_told(service: Service, exit_: Exit | None, state: State, words: str) -> None:
    made = await service.create()
    service.runtime.end(made.id, exit_)
    ended = await service.in_state(made.id, state)
    assert words in ended.status.message
    with pytest.raises(Conflict) as failure:
        await service.lifecycle.endpoint(made.id, 8080)
    assert failure.value.code == Code.SANDBOX_NOT_RUNNING
    await service.lifecycle.delete(made.id)
    stone = await service.store.tombstone(made.id)
    assert stone is not None and stone.exit == exit_


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_an_endpoint_needs_a_port_that_exists(service: Service, port: int) -> None:
    made = await service.create()
    with pytest.raises(CasuloError) as failure:
        await service.lifecycle.endpoint(made.id, port)
    assert failure.value.code == Code.INVALID_PORT
