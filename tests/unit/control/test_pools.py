# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools: a member is handed out once, becomes exactly what was asked for, and is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from casulo.control.settings import PoolSettings, PoolsSettings
from casulo.model.draft import Draft
from casulo.model.errors import (
    Code,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    Unavailable,
)
from casulo.model.keys import Caller, Limits, Scope
from casulo.model.policy import NetworkPolicy
from casulo.model.pool import Capacity, Template, shape
from casulo.model.sandbox import Isolation, Resources, Sandbox, Spec
from casulo.model.states import State
from casulo.store.query import Query
from support.memory_runtime import MemoryRuntime

from .conftest import Lab, Service, until

HOST = Template("host")


@pytest.fixture
async def pooled(lab: Lab) -> AsyncIterator[Service]:
    yield await lab.service(MemoryRuntime(lab.world, can_park=True))


async def filled(service: Service, ready: int, name: str = "p") -> None:
    async def full() -> bool:
        return service.lifecycle.pools.status(name).ready == ready

    await until(full)


async def pool_of(service: Service, size: int, **more: Any) -> None:
    await service.lifecycle.pools.create("p", HOST, Capacity(size, size), **more)
    await filled(service, size)


def drawing(service: Service, **draft: Any) -> asyncio.Task[Sandbox]:
    extensions = {"poolRef": "p", **draft.pop("extensions", {})}
    draft = {"image": "", **draft, "extensions": extensions}
    return asyncio.create_task(service.lifecycle.create(Draft(**draft)))


async def test_a_member_becomes_what_was_asked_for(pooled: Service) -> None:
    await pool_of(pooled, 2)
    parked = list(pooled.world.parked)
    made = await drawing(
        pooled, env={"A": "b"}, metadata={"m": "n"}, timeout_seconds=60, entrypoint=("sleep", "9")
    )
    assert made.id in parked and made.status.state is State.RUNNING
    assert (made.spec.env, made.metadata, made.spec.entrypoint) == ({"A": "b"}, {"m": "n"}, ("sleep", "9"))
    assert made.expires_at is not None and made.handle is not None
    assert await pooled.store.get(made.id) == made
    await filled(pooled, 2)
    assert pooled.lifecycle.pools.status("p").in_use == 1


async def test_a_plain_create_of_the_same_kind_takes_a_member_too_and_another_kind_does_not(
    pooled: Service,
) -> None:
    await pool_of(pooled, 1)
    other = await pooled.create(resource_limits={"memory": "64Mi"})
    nested = await pooled.create(extensions={"casulo.isolation": "container"})
    same = await pooled.create(env={"X": "y"})
    assert other.id not in pooled.world.parked
    assert nested.id not in pooled.world.parked
    assert same.id in pooled.world.parked


async def test_b047_twenty_members_and_fifty_takers_nobody_shares(pooled: Service) -> None:
    await pool_of(pooled, 20)
    first = await asyncio.gather(*(drawing(pooled) for _ in range(50)))
    assert len({made.id for made in first}) == 50
    assert sum(made.id in pooled.world.parked for made in first) >= 20
    await asyncio.gather(*(pooled.lifecycle.delete(made.id) for made in first))
    again = await asyncio.gather(*(drawing(pooled) for _ in range(50)))
    assert not {made.id for made in again} & {made.id for made in first}


async def test_b049_deaf_and_dead_members_are_skipped_and_replaced(pooled: Service) -> None:
    await pool_of(pooled, 6)
    deaf, dead, *_ = pooled.world.parked
    pooled.runtime.deaf = {deaf}
    pooled.world.boxes[dead].alive = False
    made = [await drawing(pooled) for _ in range(10)]
    assert all(sandbox.status.state is State.RUNNING for sandbox in made)
    assert dead not in {sandbox.id for sandbox in made}
    await filled(pooled, 6)
    await pooled.lifecycle.settled()
    assert pooled.world.destroyed[dead] == 1 and pooled.world.destroyed[deaf] == 1


async def test_an_empty_pool_starts_one_or_says_so_as_it_was_told(pooled: Service) -> None:
    pooled.runtime.park_error = RuntimeFailure("no room")
    await pooled.lifecycle.pools.create("p", HOST, Capacity(1, 1))
    assert (await drawing(pooled)).status.state is State.RUNNING
    await pooled.lifecycle.pools.delete("p")
    await pooled.lifecycle.pools.create("p", HOST, Capacity(1, 1), refuses=True)
    with pytest.raises(Unavailable) as refused:
        await drawing(pooled)
    assert refused.value.code == Code.POOL_CAPACITY_EXHAUSTED and refused.value.retry_after > 0


async def test_what_keeps_a_pool_from_being_filled_is_told_and_tried_again(pooled: Service) -> None:
    pooled.runtime.park_error = RuntimeFailure("no room")
    await pooled.lifecycle.pools.create("p", HOST, Capacity(1, 1))

    async def told() -> bool:
        return "no room" in pooled.lifecycle.pools.status("p").trouble

    await until(told)
    pooled.runtime.park_error = None
    await until(lambda: _ready(pooled, 1), within=8)
    assert pooled.lifecycle.pools.status("p").trouble == ""


async def test_a_create_that_is_refused_puts_its_member_back(pooled: Service) -> None:
    await pool_of(pooled, 1)
    poor = Caller("poor", "poor", frozenset({Scope.CREATE}), Limits(sandboxes=0))
    for _ in range(3):
        with pytest.raises(Forbidden):
            await pooled.lifecycle.create(Draft(image="host"), caller=poor)
    assert (await pooled.create()).id in pooled.world.parked
    await filled(pooled, 1)


async def test_a_failed_hand_out_leaves_nothing(pooled: Service) -> None:
    await pool_of(pooled, 1)
    pooled.runtime.create_error = InvalidRequest("no such program", code=Code.INVALID_ENTRYPOINT)
    with pytest.raises(InvalidRequest):
        await drawing(pooled, entrypoint=("nope",))
    pooled.runtime.create_error = None
    await filled(pooled, 1)
    await pooled.lifecycle.settled()
    assert (await pooled.lifecycle.list(Query())).total == 0
    assert set(pooled.world.boxes) == {
        member for member in pooled.world.boxes if pooled.runtime.ready(member)
    }
    assert len(pooled.world.boxes) == 1


async def test_sizes_change_and_members_in_use_are_not_touched(pooled: Service) -> None:
    await pool_of(pooled, 4)
    used = await drawing(pooled)
    await pooled.lifecycle.pools.change("p", Capacity(1, 1))
    await filled(pooled, 1)
    await pooled.lifecycle.pools.delete("p")
    await pooled.lifecycle.settled()
    assert set(pooled.world.boxes) == {used.id}
    assert (await pooled.lifecycle.get(used.id)).status.state is State.RUNNING


async def test_a_delete_during_the_hand_out_leaves_nothing(pooled: Service) -> None:
    await pool_of(pooled, 1)
    member = pooled.world.parked[0]
    pooled.runtime.may_create.clear()
    creation = drawing(pooled)
    await _recorded(pooled, member)
    deletion = asyncio.create_task(pooled.lifecycle.delete(member))
    with pytest.raises(Conflict):
        await creation
    await deletion
    pooled.runtime.may_create.set()
    await pooled.is_gone(member)


async def test_a_killed_server_leaves_members_that_its_successor_removes_and_pools_that_it_keeps(
    lab: Lab,
) -> None:
    first = await lab.service(MemoryRuntime(lab.world, can_park=True))
    await pool_of(first, 3)
    used = await drawing(first)
    await filled(first, 3)
    before = set(lab.world.boxes) - {used.id}
    first.lifecycle.pools._keeper.cancel()  # type: ignore[union-attr]
    await lab.crash(first)
    second = await lab.service(MemoryRuntime(lab.world, can_park=True))
    await filled(second, 3)
    await second.lifecycle.settled()
    assert not before & set(lab.world.boxes)
    assert used.id in lab.world.boxes and second.lifecycle.pools.status("p").in_use == 1


async def test_a_hand_out_cut_short_by_a_kill_becomes_a_sandbox_after_the_restart(lab: Lab) -> None:
    first = await lab.service(MemoryRuntime(lab.world, can_park=True))
    await pool_of(first, 1)
    member = lab.world.parked[0]
    first.runtime.may_create.clear()
    creation = drawing(first)
    await _recorded(first, member)
    first.lifecycle.pools._keeper.cancel()  # type: ignore[union-attr]
    creation.cancel()
    await lab.crash(first)
    second = await lab.service(MemoryRuntime(lab.world, can_park=True))
    found = await second.store.get(member)
    if found is not None:  # the cancelled call was not undone before the kill
        assert (await second.in_state(member, State.RUNNING)).id == member


async def test_pools_of_the_configuration_are_changed_there(lab: Lab) -> None:
    pools = PoolsSettings(named={"fixed": PoolSettings(image="host", min=1, max=1)})
    lab.settings = lab.settings.model_copy(update={"pools": pools})
    service = await lab.service(MemoryRuntime(lab.world, can_park=True))
    await filled(service, 1, "fixed")
    with pytest.raises(Conflict) as refused:
        await service.lifecycle.pools.delete("fixed")
    assert refused.value.code == Code.POOL_FIXED


async def test_the_kind_that_is_asked_for_most_gets_a_pool_where_that_is_wanted(lab: Lab) -> None:
    lab.settings = lab.settings.model_copy(update={"pools": PoolsSettings(implicit=2)})
    service = await lab.service(MemoryRuntime(lab.world, can_park=True))
    for _ in range(4):
        await service.create(resource_limits={"cpu": "2"})

    async def parked() -> bool:
        return len(lab.world.parked) >= 2

    await until(parked, within=8)
    assert (await service.create(resource_limits={"cpu": "2"})).id in lab.world.parked
    assert service.lifecycle.pools.list() == []


@pytest.mark.parametrize(
    ("capacity", "ready", "in_use", "wanted"),
    [
        (Capacity(2, 4), 1, 0, 3),
        (Capacity(2, 4), 2, 0, 0),
        (Capacity(2, 4), 6, 0, -2),
        (Capacity(2, 4, 0, 5), 1, 3, 1),
        (Capacity(0, 4, 3, 9), 0, 1, 2),
        (Capacity(2, 4, 0, 2), 0, 5, 0),
    ],
)
def test_how_many_are_missing(capacity: Capacity, ready: int, in_use: int, wanted: int) -> None:
    assert capacity.missing(ready, in_use) == wanted


@pytest.mark.parametrize("sizes", [(3, 2), (-1, 2), (0, 5000), (0, 1, 4, 2)])
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest):
        Capacity(*sizes)


async def test_what_the_pool_decides_cannot_be_asked_for_otherwise(pooled: Service) -> None:
    await pool_of(pooled, 1)
    for change in ({"image": "other"}, {"resource_limits": {"cpu": "9"}}, {"snapshot_id": "s"}):
        with pytest.raises(InvalidRequest, match=r"the pool 'p'.*leave it out"):
            await drawing(pooled, **change)


async def _ready(service: Service, number: int) -> bool:
    return service.lifecycle.pools.status("p").ready == number


async def _recorded(service: Service, sandbox_id: str) -> None:
    async def there() -> bool:
        return await service.store.get(sandbox_id) is not None

    await until(there)


async def test_who_asks_for_no_more_than_members_have_gets_one(pooled: Service) -> None:
    """The official client sends its usual limits with every request, and they are nobody's wish."""
    await pool_of(pooled, 1)
    for limits in ({"cpu": "1", "memory": "2Gi"}, {"cpu": "500m"}, {"memory": "64Mi", "cpu": "1"}):
        made = await drawing(pooled, resource_limits=limits)
        assert made.spec.resources.memory_bytes == 512 << 20
    for limits in ({"memory": "4Gi"}, {"disk": "1Gi"}, {"cpu": "1", "memory": "3Gi"}):
        with pytest.raises(InvalidRequest):
            await drawing(pooled, resource_limits=limits)


def test_policy_and_certificate_are_given_at_hand_out() -> None:
    """Members have neither, so any policy can be put on them before anything of the user runs."""
    plain = shape(Spec("host", (), Resources(1, 1, 1, 1)), Isolation.CONTAINER)
    policed = Spec("host", (), Resources(1, 1, 1, 1), network_policy=NetworkPolicy(), credential_proxy=True)
    assert shape(replace(policed, trusted_ca="pem"), Isolation.CONTAINER) == plain


async def test_changes_of_one_pool_at_once_leave_it_as_the_last_one_said(pooled: Service) -> None:
    pools = pooled.lifecycle.pools
    made = await asyncio.gather(
        *(pools.create("p", HOST, Capacity(1, 1)) for _ in range(3)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in made) == ["Conflict", "Conflict", "Pool"]
    ended = await asyncio.gather(
        pools.delete("p"), pools.delete("p"), pools.change("p", Capacity(0, 3)), return_exceptions=True
    )
    assert {type(each) for each in ended} <= {type(None), NotFound}, ended
    assert await pooled.store.pools.all() == () and pools.list() == []


async def test_sizes_change_and_pools_go_while_members_are_handed_out(pooled: Service) -> None:
    await pool_of(pooled, 4)
    pools = pooled.lifecycle.pools
    drawn = [drawing(pooled) for _ in range(6)]
    for size in (0, 3, 1):
        await pools.change("p", Capacity(size, size))
        drawn += [drawing(pooled) for _ in range(3)]
    made = await asyncio.gather(*drawn)
    assert len({each.id for each in made}) == 15
    await filled(pooled, 1)
    assert pools.status("p").in_use == 15
    await pools.delete("p")
    assert {item.id for item in (await pooled.store.list(Query(page_size=99))).items} == {m.id for m in made}
    await until(lambda: _only(pooled, {each.id for each in made}))


async def _only(service: Service, ids: set[str]) -> bool:
    return await service.runtime.list() == ids
