# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Expiry and renewal: the date that was last agreed on holds, whoever else is at work."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from casulo.control import expiry
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest, NotFound
from casulo.model.states import State

from .conftest import Lab, Service


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_it_ends_on_time(service: Service) -> None:
    made = await service.create(timeout_seconds=60)
    await service.lifecycle.renew(made.id, soon(0.3))
    started = time.monotonic()
    await service.is_gone(made.id)
    assert time.monotonic() - started > 0.25
    with pytest.raises(NotFound):
        await service.lifecycle.get(made.id)
    stone = await service.store.tombstone(made.id)
    assert stone is not None and stone.reason == "EXPIRED"


async def test_paused_and_ended_ones_end_on_time_too(service: Service) -> None:
    paused, ended = await service.create(timeout_seconds=60), await service.create(timeout_seconds=60)
    await service.lifecycle.pause(paused.id)
    service.runtime.end(ended.id, None)
    await service.in_state(ended.id, State.FAILED)
    for sandbox in (paused, ended):
        await service.lifecycle.renew(sandbox.id, soon(0.1))
    await service.is_gone(paused.id)
    await service.is_gone(ended.id)


async def test_one_that_still_starts_ends_on_time(service: Service) -> None:
    service.runtime.may_create.clear()
    creating = asyncio.create_task(service.create(timeout_seconds=60))
    while not (rows := await service.store.all()):
        await asyncio.sleep(0.005)
    await service.lifecycle.renew(rows[0].id, soon(0.1))
    with pytest.raises(Conflict):
        await creating
    await service.is_gone(rows[0].id)


async def test_a_slow_removal_does_not_hold_up_the_others(service: Service) -> None:
    made = [await service.create(timeout_seconds=60) for _ in range(3)]
    service.runtime.may_destroy.clear()
    await service.lifecycle.renew(made[0].id, soon(0.05))
    await service.in_state(made[0].id, State.STOPPING)
    for sandbox in made[1:]:
        await service.lifecycle.renew(sandbox.id, soon(0.05))
        await service.in_state(sandbox.id, State.STOPPING, within=1)
    service.runtime.may_destroy.set()
    for sandbox in made:
        await service.is_gone(sandbox.id)


async def test_a_clock_set_forward_is_noticed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "RECHECK_SECONDS", 0.05)
    made, first = await service.create(timeout_seconds=3600), await service.create(timeout_seconds=60)
    await service.lifecycle.renew(first.id, soon(0.05))
    await service.is_gone(first.id)
    await asyncio.sleep(0.1)  # by now the sleeper has planned for the one that is left
    service.clock.offset = timedelta(hours=1, seconds=1)
    await service.is_gone(made.id, within=2)


async def test_a_clock_set_back_ends_nothing_early(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "RECHECK_SECONDS", 0.05)
    made = await service.create(timeout_seconds=60)
    await service.lifecycle.renew(made.id, soon(0.3))
    service.clock.offset = timedelta(hours=-1)
    await asyncio.sleep(0.5)
    assert (await service.lifecycle.get(made.id)).status.state is State.RUNNING


async def test_renewing_gives_back_the_date_and_may_shorten(service: Service) -> None:
    made = await service.create(timeout_seconds=600)
    for seconds in (1200.123456, 100):
        until = soon(seconds)
        assert await service.lifecycle.renew(made.id, until) == until
        assert (await service.lifecycle.get(made.id)).expires_at == until


async def test_renewing_is_refused_for_the_past_and_for_the_endless(service: Service) -> None:
    made, endless = await service.create(timeout_seconds=600), await service.create()
    with pytest.raises(InvalidRequest) as past:
        await service.lifecycle.renew(made.id, soon(-1))
    assert past.value.code == Code.INVALID_EXPIRATION
    with pytest.raises(Conflict) as never:
        await service.lifecycle.renew(endless.id, soon(100))
    assert never.value.code == Code.INVALID_EXPIRATION
    with pytest.raises(NotFound):
        await service.lifecycle.renew("unknown", soon(100))


async def test_200_renewals_and_expiries_at_the_same_moment_agree_on_a_winner(service: Service) -> None:
    await asyncio.gather(*(_races(service, 20) for _ in range(10)))


async def _races(service: Service, number: int) -> None:
    for round_ in range(number):
        made = await service.create(timeout_seconds=60)
        at = soon(0.02)
        await service.lifecycle.renew(made.id, at)
        await asyncio.sleep(0.018 + round_ / 5_000)
        try:
            await service.lifecycle.renew(made.id, soon(600))
        except CasuloError:
            await service.is_gone(made.id)
        else:
            await asyncio.sleep(0.02)
            assert (await service.lifecycle.get(made.id)).status.state is State.RUNNING
            assert made.id in service.world.boxes
            await service.lifecycle.delete(made.id)


async def test_b041_a_restart_keeps_renewed_dates_and_reaps_the_overdue(lab: Lab) -> None:
    first = await lab.service()
    renewed, overdue = await first.create(timeout_seconds=60), await first.create(timeout_seconds=60)
    until = await first.lifecycle.renew(renewed.id, soon(600))
    await lab.crash(first)
    lab.clock.offset = timedelta(seconds=90)
    second = await lab.service()
    await second.is_gone(overdue.id)
    assert (await second.lifecycle.get(renewed.id)).expires_at == until
    assert set(lab.world.boxes) == {renewed.id}


async def test_access_extends_those_that_asked_for_it(service: Service) -> None:
    asked = {"access.renew.extend.seconds": "300"}
    made = await service.create(timeout_seconds=60, extensions=asked)
    plain = await service.create(timeout_seconds=60)
    endless = await service.create(extensions=asked)
    for sandbox in (made, plain, endless):
        await service.lifecycle.renew_on_access(sandbox.id)
    await service.lifecycle.renew_on_access("unknown")
    extended = (await service.lifecycle.get(made.id)).expires_at
    assert extended is not None and abs(extended - soon(300)) < timedelta(seconds=5)
    assert (await service.lifecycle.get(plain.id)).expires_at == plain.expires_at
    assert (await service.lifecycle.get(endless.id)).expires_at is None


async def test_access_never_shortens_and_counts_once_in_the_interval(service: Service) -> None:
    made = await service.create(timeout_seconds=60, extensions={"access.renew.extend.seconds": "300"})
    await service.lifecycle.renew_on_access(made.id)
    first = (await service.lifecycle.get(made.id)).expires_at
    await service.lifecycle.renew_on_access(made.id)
    assert (await service.lifecycle.get(made.id)).expires_at == first
    await asyncio.sleep(0.25)
    await service.lifecycle.renew_on_access(made.id)
    second = (await service.lifecycle.get(made.id)).expires_at
    assert first is not None and second is not None and second > first
    far = await service.lifecycle.renew(made.id, soon(3600))
    await asyncio.sleep(0.25)
    await service.lifecycle.renew_on_access(made.id)
    assert (await service.lifecycle.get(made.id)).expires_at == far


async def test_access_extends_nothing_unless_the_server_allows_it(lab: Lab) -> None:
    off = lab.settings.renew_intent.model_copy(update={"enabled": False})
    lab.settings = lab.settings.model_copy(update={"renew_intent": off})
    service = await lab.service()
    made = await service.create(timeout_seconds=60, extensions={"access.renew.extend.seconds": "300"})
    await service.lifecycle.renew_on_access(made.id)
    assert (await service.lifecycle.get(made.id)).expires_at == made.expires_at
