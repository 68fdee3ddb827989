# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who may start when: in turns among owners, after a bounded wait, and never on a full machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casulo.control import hostroom
from casulo.control.hostroom import Room, shortage
from casulo.control.settings import AdmissionSettings, ControlSettings, SandboxSettings
from casulo.control.turns import Turns
from casulo.model.draft import Draft
from casulo.model.errors import Code, Unavailable
from casulo.model.keys import Caller, Scope
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.store.query import Query

from .conftest import Lab, Service, until

ANN = Caller("ann", "ann", frozenset({Scope.CREATE}))
BOB = Caller("bob", "bob", frozenset({Scope.CREATE}))


def settings(wait: float = 5, starts: int = 1, **admission: object) -> ControlSettings:
    return ControlSettings(
        sandbox=SandboxSettings(max_concurrent_starts=starts, stop_grace_seconds=0.1),
        admission=AdmissionSettings(max_wait_seconds=wait, **admission),  # type: ignore[arg-type]
    )


def begin(service: Service, caller: Caller) -> asyncio.Task[Sandbox]:
    return asyncio.create_task(service.lifecycle.create(Draft(image="host"), caller=caller))


async def test_one_owners_crowd_delays_another_by_one_turn(lab: Lab) -> None:
    lab.settings = settings()
    service = await lab.service()
    service.runtime.may_create.clear()
    crowd = [begin(service, ANN) for _ in range(20)]
    await until(lambda: _is(service.runtime.creating == 1))
    late = [begin(service, BOB) for _ in range(2)]
    await until(lambda: _is(service.lifecycle.queued() == {"memory": 21}))
    service.runtime.may_create.set()
    made = await asyncio.gather(*crowd, *late)
    owners = {sandbox.id: sandbox.owner for sandbox in made}
    order = [owners[sandbox_id] for sandbox_id in service.world.created]
    assert order[:5] == ["ann", "ann", "bob", "ann", "bob"]


async def test_while_it_waits_it_says_so_and_afterwards_no_more(lab: Lab) -> None:
    lab.settings = settings()
    service = await lab.service()
    service.runtime.may_create.clear()
    first, second = begin(service, ANN), begin(service, ANN)

    async def reasons() -> bool:
        page = await service.lifecycle.list(Query())
        return {item.status.reason for item in page.items} == {"CONTAINER_STARTING", "QUEUED"}

    await until(reasons)
    page = await service.lifecycle.list(Query())
    assert all(item.status.state is State.PENDING for item in page.items)
    service.runtime.may_create.set()
    for made in await asyncio.gather(first, second):
        assert made.status.reason == "CONTAINER_RUNNING" and made.status.message == ""


async def test_after_a_bounded_wait_the_caller_is_told_to_come_again_and_nothing_is_left(lab: Lab) -> None:
    lab.settings = settings(wait=0.2)
    service = await lab.service()
    service.runtime.may_create.clear()
    first = begin(service, ANN)
    await until(lambda: _is(service.runtime.creating == 1))
    with pytest.raises(Unavailable) as refused:
        await service.create()
    assert refused.value.code == Code.CAPACITY_EXHAUSTED and refused.value.retry_after > 0
    service.runtime.may_create.set()
    made = await first
    await service.lifecycle.settled()
    assert [item.id for item in (await service.lifecycle.list(Query())).items] == [made.id]
    assert (await service.create()).status.state is State.RUNNING


async def test_a_full_machine_starts_nothing_until_there_is_room(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.settings = settings(wait=5, min_free_memory="1Gi")
    rooms = [Room(2**20, 2**40, 9999)]
    monkeypatch.setattr(hostroom, "look", lambda folder: rooms[-1])
    service = await lab.service()
    creation = begin(service, ANN)

    async def told() -> bool:
        page = await service.lifecycle.list(Query())
        return [item.status.reason for item in page.items] == ["HOST_FULL"]

    await until(told)
    assert "memory" in (await service.lifecycle.list(Query())).items[0].status.message
    rooms.append(Room(2**40, 2**40, 9999))
    assert (await creation).status.state is State.RUNNING


async def test_a_machine_that_stays_full_is_named_as_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.settings = settings(wait=0.1)
    monkeypatch.setattr(hostroom, "look", lambda folder: Room(2**40, 2**40, 3))
    service = await lab.service()
    with pytest.raises(Unavailable, match="3 more processes"):
        await service.create()
    assert service.world.created == []


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (Room(9, 10, 10), "memory"),
        (Room(10, 9, 10), "disk"),
        (Room(10, 10, 9), "processes"),
        (Room(10, 10, 10), ""),
    ],
)
def test_what_is_short_is_said(room: Room, said: str) -> None:
    told = shortage(room, Room(10, 10, 10))
    assert said in told and bool(told) == bool(said)


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    room = hostroom.look(tmp_path)
    assert room.memory > 0 and room.disk > 0 and 0 < room.pids < 2**22


async def test_turns_are_never_lost_whoever_gives_up_when() -> None:
    turns = Turns(2)

    async def worker(number: int) -> None:
        await turns.take(f"owner {number % 3}")
        try:
            await asyncio.sleep(0)
        finally:
            turns.give_back()

    for skipped in range(1, 7):
        workers = [asyncio.create_task(worker(n)) for n in range(40)]
        for n, task in enumerate(workers):
            if n % skipped == 0:
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert turns.waiting == 0
        await asyncio.wait_for(asyncio.gather(turns.take("a"), turns.take("b")), 1)
        assert not turns.open
        turns.give_back()
        turns.give_back()


async def _is(condition: bool) -> bool:
    return condition
