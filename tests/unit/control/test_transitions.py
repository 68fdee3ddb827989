# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whatever is called in whatever order, every stored step is one that the table has."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from casulo.control.events import Kind, turn
from casulo.control.lifecycle import Lifecycle
from casulo.control.transitions import Reason, ended, moved, noted, settled
from casulo.model.errors import CasuloError, Conflict
from casulo.model.sandbox import Exit, Handle, Resources, Sandbox, Spec
from casulo.model.states import ENDED, TRANSITIONS, State, Status, allowed
from casulo.runtimes.base import Reality
from casulo.runtimes.registry import Registry
from casulo.store.query import Tombstone
from casulo.store.store import Change, Store
from support.memory_runtime import MemoryRuntime

from .conftest import Lab, Service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)


def at(state: State) -> Sandbox:
    spec = Spec("host", (), Resources(1, 1, 1, 1))
    return Sandbox("id", spec, Status(state, "REASON", "", NOW), NOW, handle=Handle("h", 1, "t"))


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(State, State)))
def test_moving_follows_the_table(current: State, wanted: State) -> None:
    if not allowed(current, wanted):
        with pytest.raises(Conflict):
            moved(at(current), wanted, "NEW", LATER)
        return
    after = moved(at(current), wanted, "NEW", LATER, message="m")
    assert after.status == Status(wanted, "NEW", "m", LATER)
    assert replace(after, status=at(current).status) == at(current)


@pytest.mark.parametrize(("state", "exit_"), list(itertools.product(State, [Exit(0), Exit(1), None])))
def test_an_end_never_brings_back_nor_happens_twice(state: State, exit_: Exit | None) -> None:
    after = ended(at(state), exit_, LATER)
    if state in ENDED or state is State.STOPPING:
        assert after == at(state)
        return
    assert after.status.state in ENDED and after.exit == exit_
    assert ended(after, Exit(99), LATER) is after


@pytest.mark.parametrize(("state", "frozen"), list(itertools.product(State, [True, False])))
def test_settling_ends_at_what_is_true(state: State, frozen: bool) -> None:
    if state is State.PENDING:
        return  # those are started over, not settled
    after = settled(at(state), Reality(alive=True, frozen=frozen), LATER)
    if state in ENDED or state is State.STOPPING:
        assert after == at(state)
        return
    assert after.status.state is (State.PAUSED if frozen else State.RUNNING)
    assert settled(after, Reality(alive=True, frozen=frozen), LATER) is after


def test_settling_clears_a_doubt() -> None:
    doubtful = replace(at(State.RUNNING), status=Status(State.RUNNING, Reason.UNKNOWN, "?", NOW))
    after = settled(doubtful, Reality(alive=True), LATER)
    assert after.status == Status(State.RUNNING, Reason.RUNNING, "", NOW)


class WatchedStore(Store):
    """Remembers every step that was stored."""

    steps: list[tuple[State, State]]

    async def update(self, sandbox_id: str, change: Change) -> Sandbox | None:
        def watched(found: Sandbox) -> Sandbox:
            after = change(found)
            if after.status.state is not found.status.state:
                self.steps.append((found.status.state, after.status.state))
            return after

        return await super().update(sandbox_id, watched)


async def walk(service: Service, chance: random.Random, ids: list[str]) -> None:
    """Thirty calls at random, most of which are wrong for the state that they meet."""
    for _ in range(30):
        action = chance.choice(["create", "delete", "pause", "pause", "resume", "resume", "renew", "end"])
        victim = chance.choice(ids)
        try:
            if action == "create":
                ids.append((await service.create(timeout_seconds=60)).id)
            elif action == "renew":
                until = datetime.now(UTC) + timedelta(milliseconds=chance.randrange(1, 60))
                await service.lifecycle.renew(victim, until)
            elif action == "end" and victim in service.world.boxes:
                service.runtime.end(victim, chance.choice([Exit(0), Exit(1), None]))
            elif action in ("delete", "pause", "resume"):
                await getattr(service.lifecycle, action)(victim)
        except CasuloError:
            continue


@pytest.mark.parametrize("seed", range(6))
async def test_random_walks_keep_to_the_table_and_leave_no_difference(lab: Lab, seed: int) -> None:
    store = await WatchedStore.open(f"sqlite:///{lab.path}")
    store.steps = []
    runtime = MemoryRuntime(lab.world)
    lifecycle = Lifecycle(store, Registry([runtime]), lab.settings)
    await lifecycle.open()
    service = Service(lifecycle, store, runtime, lab.clock)
    lab.services.append(service)
    ids = [(await service.create(timeout_seconds=60)).id for _ in range(4)]
    await asyncio.gather(*(walk(service, random.Random(f"{seed}-{n}"), ids) for n in range(4)))
    await asyncio.sleep(0.2)  # the shortest lives end
    await lifecycle.settled()

    legal = {(a, b) for a, after in TRANSITIONS.items() for b in after}
    settled_through = {(State.PAUSED, State.RUNNING), (State.RUNNING, State.PAUSED)}
    assert set(store.steps) <= legal | settled_through
    assert len(set(store.steps)) >= 6, "the walk must have been anywhere"
    rows = {sandbox.id: sandbox.status.state for sandbox in await store.all()}
    assert set(rows) == set(lab.world.boxes)
    for sandbox_id, state in rows.items():
        box = lab.world.boxes[sandbox_id]
        assert (state in ENDED) is not box.alive
        assert (state is State.PAUSED) is (box.frozen and box.alive)


TURNS = {
    ("Pending", "Running"): Kind.RUNNING,
    ("Running", "Paused"): Kind.PAUSED,
    ("Pausing", "Paused"): Kind.PAUSED,
    ("Paused", "Running"): Kind.RESUMED,
    ("Resuming", "Running"): Kind.RESUMED,
    **{(was, "Failed"): Kind.ENDED for was in ("Pending", "Running", "Pausing", "Paused", "Resuming")},
    **{(was, "Terminated"): Kind.ENDED for was in ("Pending", "Running", "Pausing", "Paused", "Resuming")},
}


@pytest.mark.parametrize(("was", "becomes"), list(itertools.product(State, State)))
def test_each_change_means_one_thing_to_others(was: State, becomes: State) -> None:
    event = turn(at(was), at(becomes))
    assert (event.kind if event else None) == TURNS.get((str(was), str(becomes)))


def test_a_failed_start_and_a_removal_are_told_with_their_reasons() -> None:
    failed = noted(at(State.STOPPING), Reason.START_FAILED, "why")
    told = turn(at(State.PENDING), failed)
    assert told and (told.kind, told.reason, told.sandbox) == (Kind.START_FAILED, "START_FAILED", failed)
    assert turn(at(State.RUNNING), failed) is None
    gone = turn(failed, Tombstone("id", LATER, "EXPIRED"))
    assert gone and (gone.kind, gone.reason, gone.at) == (Kind.REMOVED, "EXPIRED", LATER)
