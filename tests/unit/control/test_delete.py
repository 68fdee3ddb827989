# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Deleting: complete, repeatable, and stronger than whatever else is going on."""

from __future__ import annotations

import asyncio

import pytest

from casulo.control import stops
from casulo.model.errors import Code, Conflict, NotFound, RuntimeFailure
from casulo.model.states import State
from casulo.store.query import Query

from .conftest import Service, until


async def test_nothing_is_left_but_a_tombstone(service: Service) -> None:
    made = await service.create()
    await service.lifecycle.delete(made.id)
    assert not service.world.boxes
    assert (await service.lifecycle.list(Query())).total == 0
    for call in (service.lifecycle.get, service.lifecycle.delete, service.lifecycle.pause):
        with pytest.raises(NotFound) as failure:
            await call(made.id)
        assert failure.value.code == Code.SANDBOX_NOT_FOUND
    stone = await service.store.tombstone(made.id)
    assert stone is not None and stone.reason == "DELETING"


async def test_an_unknown_id_is_not_found(service: Service) -> None:
    with pytest.raises(NotFound):
        await service.lifecycle.delete("no-such-id")


async def test_deletes_at_the_same_time_share_one_removal(service: Service) -> None:
    made = await service.create()
    await asyncio.gather(*(service.lifecycle.delete(made.id) for _ in range(20)))
    assert service.world.destroyed[made.id] == 1


async def test_a_removal_goes_on_when_its_caller_leaves(service: Service) -> None:
    made = await service.create()
    service.runtime.may_destroy.clear()
    deleting = asyncio.create_task(service.lifecycle.delete(made.id))
    await service.in_state(made.id, State.STOPPING)
    deleting.cancel()
    service.runtime.may_destroy.set()
    await service.is_gone(made.id)


async def _pending(service: Service) -> str:
    while not (page := await service.lifecycle.list(Query())).items:
        await asyncio.sleep(0)
    return page.items[0].id


async def test_b043_delete_during_create_cancels_and_undoes(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = asyncio.create_task(service.create())
    sandbox_id = await _pending(service)
    await service.lifecycle.delete(sandbox_id)
    with pytest.raises(Conflict) as failure:
        await creating
    assert failure.value.code == Code.SANDBOX_DELETED_DURING_CREATE
    service.runtime.may_create.set()
    await service.lifecycle.settled()
    assert not service.world.boxes and not service.world.created
    with pytest.raises(NotFound):
        await service.lifecycle.delete(sandbox_id)


async def test_b043_delete_at_any_moment_of_a_create_leaves_nothing(service: Service) -> None:
    for delay in range(60):
        creating = asyncio.create_task(service.create())
        sandbox_id = await _pending(service)
        await asyncio.sleep(delay / 20_000)
        await service.lifecycle.delete(sandbox_id)
        outcome = (await asyncio.gather(creating, return_exceptions=True))[0]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, Conflict) and outcome.code == Code.SANDBOX_DELETED_DURING_CREATE
        await service.lifecycle.settled()
        assert not service.world.boxes and not await service.store.all()


async def test_a_create_that_fails_while_it_is_deleted_does_not_hang(service: Service) -> None:
    service.runtime.may_create.clear()
    service.runtime.may_destroy.clear()
    creating = asyncio.create_task(service.create())
    sandbox_id = await _pending(service)
    service.runtime.create_error = RuntimeFailure("broken")
    service.runtime.may_create.set()
    deleting = asyncio.create_task(service.lifecycle.delete(sandbox_id))
    await asyncio.sleep(0.05)
    service.runtime.may_destroy.set()
    async with asyncio.timeout(5):
        await deleting
        with pytest.raises((Conflict, RuntimeFailure)):
            await creating
    assert not service.world.boxes


async def test_a_start_that_answers_its_interruption_with_an_error_does_not_hang(service: Service) -> None:
    service.runtime.may_create.clear()
    service.runtime.cancel_error = RuntimeFailure("could not undo in full")
    creating = asyncio.create_task(service.create())
    sandbox_id = await _pending(service)
    while not service.world.boxes:
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await service.lifecycle.delete(sandbox_id)
        with pytest.raises(Conflict) as failure:
            await creating
    assert failure.value.code == Code.SANDBOX_DELETED_DURING_CREATE
    await service.is_gone(sandbox_id)


async def test_delete_wins_over_a_pause_in_progress(service: Service) -> None:
    made = await service.create()
    service.runtime.may_pause.clear()
    pausing = asyncio.create_task(service.lifecycle.pause(made.id))
    await service.in_state(made.id, State.PAUSING)
    deleting = asyncio.create_task(service.lifecycle.delete(made.id))
    await service.in_state(made.id, State.STOPPING)
    service.runtime.may_pause.set()
    await deleting
    with pytest.raises(Conflict):
        await pausing
    await service.is_gone(made.id)


async def test_an_end_noticed_during_the_removal_changes_nothing(service: Service) -> None:
    made = await service.create()
    service.runtime.may_destroy.clear()
    deleting = asyncio.create_task(service.lifecycle.delete(made.id))
    await service.in_state(made.id, State.STOPPING)
    service.runtime.end(made.id, None)
    await asyncio.sleep(0.02)
    assert (await service.lifecycle.get(made.id)).status.state is State.STOPPING
    service.runtime.may_destroy.set()
    await deleting


async def test_a_removal_that_fails_is_told_marked_and_tried_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "_FIRST_RETRY_SECONDS", 0.01)
    made = await service.create()
    service.runtime.destroy_error = RuntimeFailure("a process does not end")
    with pytest.raises(RuntimeFailure) as failure:
        await service.lifecycle.delete(made.id)
    assert failure.value.code == Code.SANDBOX_DELETE_FAILED
    left = await service.lifecycle.get(made.id)
    assert (left.status.state, left.status.reason) == (State.STOPPING, "DELETING")
    assert "does not end" in left.status.message
    service.runtime.destroy_error = None
    await service.is_gone(made.id, within=8)
    stone = await service.store.tombstone(made.id)
    assert stone and stone.reason == "DELETING", "and not that it was hard"


async def test_a_failed_removal_can_be_asked_for_again(service: Service) -> None:
    made = await service.create()
    service.runtime.destroy_error = OSError("device busy")
    with pytest.raises(OSError, match="device busy"):
        await service.lifecycle.delete(made.id)
    service.runtime.destroy_error = None
    await service.lifecycle.delete(made.id)
    await service.is_gone(made.id)


async def test_closing_undoes_creates_in_flight_and_keeps_sandboxes(service: Service) -> None:
    kept = await service.create()
    service.runtime.may_create.clear()
    creating = [asyncio.create_task(service.create()) for _ in range(6)]

    async def all_recorded() -> bool:
        return len(await service.store.all()) == 7

    await until(all_recorded)
    await service.lifecycle.close()
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    assert all(isinstance(outcome, Conflict) for outcome in outcomes)
    assert set(service.world.boxes) == {kept.id}
    assert [sandbox.id for sandbox in await service.store.all()] == [kept.id]
