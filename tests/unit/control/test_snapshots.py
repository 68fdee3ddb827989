# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots: refused where they do not fit, never left halfway, and settled after a crash."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from casulo.model.draft import Draft
from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound, RuntimeFailure, Unsupported
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Isolation, Platform, Sandbox
from casulo.model.snapshot import Snapshot, SnapshotState
from casulo.model.states import State
from casulo.store.query import SnapshotQuery
from support.memory_runtime import MemoryRuntime

from .conftest import Lab, Service, until


async def reached(service: Service, snapshot_id: str, *states: SnapshotState) -> Snapshot:
    """The snapshot once it left Creating; in one of `states`, by default Ready."""
    await until(lambda: left_creating(service, snapshot_id))
    found = await service.lifecycle.snapshots.get(snapshot_id)
    assert found.status.state in (states or (SnapshotState.READY,)), found.status
    return found


async def left_creating(service: Service, snapshot_id: str) -> bool:
    return (await service.lifecycle.snapshots.get(snapshot_id)).status.state is not SnapshotState.CREATING


async def taken(service: Service, sandbox: Sandbox, name: str = "") -> Snapshot:
    made = await service.lifecycle.snapshots.take(sandbox.id, name)
    return await reached(service, made.id)


async def restore(service: Service, snapshot_id: str, **draft: Any) -> Sandbox:
    return await service.lifecycle.create(Draft(image="", snapshot_id=snapshot_id, **draft))


async def test_taken_kept_and_restored(service: Service) -> None:
    source = await service.create(
        entrypoint=("sleep", "9"), platform=Platform("linux", "amd64"), env={"TOKEN": "secret"}
    )
    service.runtime.may_snapshot.clear()
    accepted = await service.lifecycle.snapshots.take(source.id, "first")
    assert (accepted.status.state, accepted.status.reason) == ("Creating", "snapshot_accepted")
    service.runtime.may_snapshot.set()
    ready = await reached(service, accepted.id)
    assert (ready.status.reason, ready.name, ready.sandbox_id) == (
        "snapshot_runtime_ready",
        "first",
        source.id,
    )
    assert not ready.spec.env
    await service.lifecycle.delete(source.id)
    made = await restore(service, ready.id, env={"A": "b"})
    assert (made.spec.snapshot_id, made.spec.image) == (ready.id, "host")
    assert made.spec.entrypoint == DEFAULT_ENTRYPOINT and made.spec.platform == source.spec.platform
    again = await restore(service, ready.id, entrypoint=("sh",))
    assert again.spec.entrypoint == ("sh",)


async def test_listing_filters_and_pages(service: Service) -> None:
    one, two = await service.create(), await service.create()
    made = [await taken(service, box, name) for box, name in ((one, "a"), (two, "a"), (one, "b"))]

    async def listed(**query: Any) -> list[str]:
        return [item.id for item in (await service.lifecycle.snapshots.list(SnapshotQuery(**query))).items]

    assert await listed() == [made[2].id, made[1].id, made[0].id]
    assert await listed(sandbox_id=one.id) == [made[2].id, made[0].id]
    assert await listed(name="a", sandbox_id=two.id) == [made[1].id]
    assert await listed(states=frozenset({SnapshotState.FAILED})) == []
    page = await service.lifecycle.snapshots.list(SnapshotQuery(page=2, page_size=2))
    assert [item.id for item in page.items] == [made[0].id] and page.total == 3


async def test_only_running_sandboxes_are_sources(service: Service) -> None:
    source = await service.create()
    await service.lifecycle.pause(source.id)
    with pytest.raises(Conflict) as caught:
        await service.lifecycle.snapshots.take(source.id)
    assert caught.value.code == Code.SNAPSHOT_INVALID_SOURCE_STATE
    with pytest.raises(NotFound):
        await service.lifecycle.snapshots.take("unknown")
    with pytest.raises(InvalidRequest):
        await service.lifecycle.snapshots.take(source.id, "x" * 256)
    assert not await service.store.snapshots.all()


async def test_a_runtime_without_the_ability_refuses(lab: Lab) -> None:
    service = await lab.service(MemoryRuntime(lab.world, can_snapshot=False))
    source = await service.create()
    with pytest.raises(Unsupported) as caught:
        await service.lifecycle.snapshots.take(source.id)
    assert caught.value.code == Code.SNAPSHOT_UNSUPPORTED_RUNTIME
    assert not await service.store.snapshots.all()


@pytest.mark.parametrize("error", [RuntimeFailure("no room"), OSError(28, "No space left on device")])
async def test_a_failure_is_told_and_leaves_nothing(service: Service, error: Exception) -> None:
    source = await service.create()
    service.runtime.snapshot_error = error
    made = await service.lifecycle.snapshots.take(source.id)
    failed = await reached(service, made.id, SnapshotState.FAILED)
    assert failed.status.reason == "snapshot_runtime_failed" and "o" in failed.status.message
    assert not service.world.snapshots
    assert (await service.lifecycle.get(source.id)).status.state is State.RUNNING
    with pytest.raises(Conflict) as caught:
        await restore(service, made.id)
    assert caught.value.code == Code.SNAPSHOT_NOT_READY
    await service.lifecycle.snapshots.delete(made.id)
    assert not await service.store.snapshots.all()


async def test_one_that_takes_too_long_fails(lab: Lab) -> None:
    changed = lab.settings.snapshot.model_copy(update={"take_timeout_seconds": 0.05})
    lab.settings = lab.settings.model_copy(update={"snapshot": changed})
    service = await lab.service()
    source = await service.create()
    service.runtime.may_snapshot.clear()
    made = await service.lifecycle.snapshots.take(source.id)
    failed = await reached(service, made.id, SnapshotState.FAILED)
    assert failed.status.reason == "snapshot_runtime_timeout"
    assert not service.world.snapshots


async def test_delete_is_refused_while_creating(service: Service) -> None:
    source = await service.create()
    service.runtime.may_snapshot.clear()
    made = await service.lifecycle.snapshots.take(source.id)
    with pytest.raises(Conflict) as caught:
        await service.lifecycle.snapshots.delete(made.id)
    assert caught.value.code == Code.SNAPSHOT_INVALID_STATE
    with pytest.raises(Conflict) as early:
        await restore(service, made.id)
    assert early.value.code == Code.SNAPSHOT_NOT_READY
    service.runtime.may_snapshot.set()
    await reached(service, made.id)
    await asyncio.gather(*(service.lifecycle.snapshots.delete(made.id) for _ in range(3)))
    assert not service.world.snapshots
    for call in (service.lifecycle.snapshots.delete, service.lifecycle.snapshots.get):
        with pytest.raises(NotFound) as gone:
            await call(made.id)
        assert gone.value.code == Code.SNAPSHOT_NOT_FOUND
    with pytest.raises(NotFound):
        await restore(service, made.id)


async def test_a_failed_delete_is_tried_again(service: Service) -> None:
    made = await taken(service, await service.create())
    service.runtime.remove_error = RuntimeFailure("busy")
    with pytest.raises(RuntimeFailure) as caught:
        await service.lifecycle.snapshots.delete(made.id)
    assert caught.value.code == Code.SNAPSHOT_DELETE_FAILED
    assert (await service.lifecycle.snapshots.get(made.id)).status.state is SnapshotState.DELETING
    with pytest.raises(Conflict):
        await restore(service, made.id)
    service.runtime.remove_error = None
    await service.lifecycle.snapshots.delete(made.id)
    assert not service.world.snapshots and not await service.store.snapshots.all()


async def test_pause_delete_and_expiry_of_the_source_wait(service: Service) -> None:
    boxes = [await service.create(timeout_seconds=60) for _ in range(3)]
    service.runtime.may_snapshot.clear()
    made = [await service.lifecycle.snapshots.take(box.id) for box in boxes]
    await asyncio.sleep(0)
    pausing = asyncio.create_task(service.lifecycle.pause(boxes[0].id))
    deleting = asyncio.create_task(service.lifecycle.delete(boxes[1].id))
    service.clock.offset = timedelta(seconds=30)
    await service.lifecycle.renew(boxes[2].id, service.clock() + timedelta(seconds=0.05))
    await service.in_state(boxes[2].id, State.STOPPING)
    await service.in_state(boxes[1].id, State.STOPPING)
    assert not pausing.done() and not deleting.done()
    service.runtime.may_snapshot.set()
    await asyncio.gather(pausing, deleting)
    for snapshot in made:
        await reached(service, snapshot.id)
    assert (await service.lifecycle.get(boxes[0].id)).status.state is State.PAUSED
    await service.is_gone(boxes[2].id)
    assert (await restore(service, made[2].id)).status.state is State.RUNNING


async def test_a_source_that_left_before_its_turn(service: Service) -> None:
    source = await service.create()
    service.runtime.may_pause.clear()
    pausing = asyncio.create_task(service.lifecycle.pause(source.id))
    await asyncio.sleep(0)  # it has the lock and was not yet moved: the state still says Running
    made = await service.lifecycle.snapshots.take(source.id)
    service.runtime.may_pause.set()
    await pausing
    failed = await reached(service, made.id, SnapshotState.FAILED)
    assert "Paused" in failed.status.message
    assert service.world.boxes[source.id].frozen


@pytest.mark.parametrize("complete", [False, True])
async def test_one_cut_short_has_failed(lab: Lab, complete: bool) -> None:
    first = await lab.service()
    source = await first.create()
    first.runtime.may_snapshot.clear()
    made = await first.lifecycle.snapshots.take(source.id)
    await until(lambda: begun(lab, made.id))
    await lab.crash(first)
    lab.world.snapshots[made.id] = complete
    second = await lab.service()
    await second.lifecycle.settled()
    found = await second.lifecycle.snapshots.get(made.id)
    assert (found.status.state, found.status.reason) == ("Failed", "snapshot_recovery_interrupted")
    assert not lab.world.snapshots
    await taken(second, source)


async def begun(lab: Lab, snapshot_id: str) -> bool:
    return snapshot_id in lab.world.snapshots


async def test_restart_keeps_finishes_and_sweeps(lab: Lab) -> None:
    first = await lab.service()
    source = await first.create()
    kept, going, lost = [await taken(first, source) for _ in range(3)]
    first.runtime.remove_error = RuntimeFailure("busy")
    with pytest.raises(RuntimeFailure):
        await first.lifecycle.snapshots.delete(going.id)
    await lab.crash(first)
    del lab.world.snapshots[lost.id]
    lab.world.snapshots["stranger"] = True
    second = await lab.service()
    await second.lifecycle.settled()
    assert set(lab.world.snapshots) == {kept.id}
    assert await second.lifecycle.snapshots.get(kept.id) == kept
    assert (await second.lifecycle.snapshots.get(lost.id)).status.reason == "snapshot_recovery_lost"
    with pytest.raises(NotFound):
        await second.lifecycle.snapshots.get(going.id)
    await restore(second, kept.id)


async def test_what_comes_from_the_snapshot_cannot_be_changed(lab: Lab) -> None:
    runtime = MemoryRuntime(lab.world)
    runtime.isolations = frozenset(Isolation)
    service = await lab.service(runtime)
    source = await service.create(isolation=Isolation.GVISOR, platform=Platform("linux", "amd64"))
    made = await taken(service, source)
    for change in (
        {"isolation": Isolation.CONTAINER},
        {"extensions": {"casulo.isolation": "container"}},
        {"extensions": {"casulo.runtime": "other"}},
        {"platform": Platform("linux", "arm64")},
    ):
        with pytest.raises(Conflict) as caught:
            await restore(service, made.id, **change)
        assert caught.value.code == Code.SNAPSHOT_INVALID_RESTORE_CONFIG
    same = {"extensions": {"casulo.runtime": "memory", "casulo.isolation": "auto"}}
    again = await restore(service, made.id, platform=Platform("Linux", "AMD64"), **same)
    assert again.spec.isolation is Isolation.GVISOR
    assert again.spec.extensions["casulo.isolation"] == "gvisor"
