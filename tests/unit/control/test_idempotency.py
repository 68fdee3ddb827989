# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Idempotency keys: one key, one request, one sandbox, whatever happens in between."""

from __future__ import annotations

import asyncio

import pytest

from casulo.model.draft import Draft
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest, RuntimeFailure, Unavailable
from casulo.model.sandbox import Sandbox
from casulo.model.states import State

from .conftest import Lab, Service

DRAFT = Draft(image="host", metadata={"a": "b"})


async def keyed(service: Service, key: str = "key-1", request_hash: str = "h1") -> Sandbox:
    return await service.lifecycle.create(DRAFT, idempotency_key=key, request_hash=request_hash)


async def test_the_same_request_gives_the_same_sandbox(service: Service) -> None:
    first = await keyed(service)
    assert await keyed(service) == first
    assert (await keyed(service, "key-2")).id != first.id
    assert len(service.world.boxes) == 2


async def test_another_request_under_the_key_is_a_conflict(service: Service) -> None:
    await keyed(service)
    with pytest.raises(Conflict) as failure:
        await keyed(service, request_hash="h2")
    assert failure.value.code == Code.IDEMPOTENCY_CONFLICT


async def test_requests_at_the_same_time_share_one_start(service: Service) -> None:
    service.runtime.may_create.clear()
    calls = [asyncio.create_task(keyed(service)) for _ in range(30)]
    other = asyncio.create_task(keyed(service, request_hash="h2"))
    await asyncio.sleep(0.05)
    service.runtime.may_create.set()
    outcomes = await asyncio.gather(*calls, other, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, Conflict)]
    made = [o for o in outcomes if isinstance(o, Sandbox)]
    assert len({o.id for o in made}) == 1 and len(refused) + len(made) == 31
    assert all(o.status.state is State.RUNNING for o in made), "all wait for the one start"
    assert len(service.world.boxes) == 1 == len(await service.store.all())


async def test_the_sandbox_outlives_a_caller_that_goes_away(service: Service) -> None:
    service.runtime.may_create.clear()
    call = asyncio.create_task(keyed(service))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    service.runtime.may_create.set()
    made = await keyed(service)
    assert made.status.state is State.RUNNING
    assert set(service.world.boxes) == {made.id}


async def test_a_failed_create_frees_the_key(service: Service) -> None:
    service.runtime.create_error = RuntimeFailure("broken")
    outcomes = await asyncio.gather(*(keyed(service) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, RuntimeFailure) for outcome in outcomes)
    service.runtime.create_error = None
    assert (await keyed(service)).status.state is State.RUNNING


async def test_a_failed_create_that_cannot_be_undone_is_told_until_it_is(service: Service) -> None:
    away = Unavailable("the engine is away", code=Code.RUNTIME_UNAVAILABLE)
    service.runtime.create_error = service.runtime.destroy_error = away
    with pytest.raises(CasuloError, match="the engine is away"):
        await keyed(service)
    with pytest.raises(Unavailable, match=r"not undone yet: .*the engine is away") as failure:
        await keyed(service)
    assert failure.value.retry_after
    service.runtime.create_error = service.runtime.destroy_error = None
    for _ in range(200):
        try:
            assert (await keyed(service)).status.state is State.RUNNING
            return
        except Unavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("the key never came free")


async def test_the_key_of_a_deleted_sandbox_makes_no_second_one(service: Service) -> None:
    made = await keyed(service)
    await service.lifecycle.delete(made.id)
    with pytest.raises(Conflict) as failure:
        await keyed(service)
    assert failure.value.code == Code.IDEMPOTENCY_CONFLICT


async def test_a_request_that_was_refused_leaves_the_key_free(service: Service) -> None:
    with pytest.raises(InvalidRequest):
        await service.lifecycle.create(Draft(image=""), idempotency_key="key-1", request_hash="bad")
    assert (await keyed(service)).status.state is State.RUNNING


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb"])
async def test_a_key_must_be_sensible(service: Service, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await keyed(service, key)


async def test_keys_hold_after_a_restart(lab: Lab) -> None:
    first = await lab.service()
    made = await keyed(first)
    await lab.crash(first)
    second = await lab.service()
    assert (await keyed(second)).id == made.id
    with pytest.raises(Conflict):
        await keyed(second, request_hash="h2")


async def test_a_create_cut_short_by_a_crash_is_finished_for_its_key(lab: Lab) -> None:
    first = await lab.service()
    first.runtime.may_create.clear()
    call = asyncio.create_task(keyed(first))
    while not first.world.boxes:
        await asyncio.sleep(0.005)
    await lab.crash(first)
    await asyncio.gather(call, return_exceptions=True)
    second = await lab.service()
    made = await keyed(second)
    assert made.status.state is State.RUNNING
    assert set(lab.world.boxes) == {made.id} == {s.id for s in await second.store.all()}
