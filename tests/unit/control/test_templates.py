# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates and forks where things go wrong: half made ones are settled, and nobody else is touched."""

from __future__ import annotations

import pytest

from casulo.control.access import Access
from casulo.control.forks import Wish
from casulo.model.draft import Draft
from casulo.model.errors import NotFound, RuntimeFailure
from casulo.model.keys import Caller, Scope
from casulo.model.template import Ordered

from .conftest import Lab, Service, until
from .test_snapshots import begun

ORDERED = Ordered("s3://bucket/x")


async def test_a_killed_server_leaves_a_failed_template_and_no_sandbox_of_it(lab: Lab) -> None:
    first = await lab.service()
    first.runtime.may_snapshot.clear()
    access = Access(first.lifecycle, _caller("alice"))
    made = await access.templates.create(Draft(image="host"), ORDERED)
    await until(lambda: begun(lab, made.id))
    named = await first.create(metadata={"casulo.template": made.id})
    assert len(lab.world.boxes) == 2
    await lab.crash(first)
    second = await lab.service()
    await second.lifecycle.settled()
    found = await second.lifecycle.templates.get(made.id)
    assert (found.status.state, found.status.reason) == ("Failed", "snapshot_recovery_interrupted")
    assert set(lab.world.boxes) == {named.id}, "one that somebody else only calls so stays"
    await second.lifecycle.templates.delete(made.id)


async def test_templates_of_others_do_not_exist(service: Service) -> None:
    mine, theirs = (Access(service.lifecycle, _caller(name)) for name in ("alice", "bob"))
    made = await mine.templates.create(Draft(image="host"), ORDERED)
    await service.lifecycle.settled()
    assert (await mine.templates.get(made.id)).status.state == "Ready"
    for refused in (theirs.templates.get, theirs.templates.delete):
        with pytest.raises(NotFound):
            await refused(made.id)
    with pytest.raises(NotFound):
        await theirs.create(Draft(image="", snapshot_id=made.id, timeout_seconds=60))
    assert not (await theirs.templates.list({}, 1, 20)).items
    assert (await mine.templates.list({}, 1, 20)).total == 1


async def test_a_child_that_fails_takes_all_with_it(service: Service) -> None:
    parent = await service.create()
    service.runtime.create_error = RuntimeFailure("no room")
    with pytest.raises(RuntimeFailure, match="no room"):
        await service.lifecycle.fork(parent.id, Wish(count=3))
    await service.lifecycle.settled()
    assert set(service.world.boxes) == {parent.id} and not service.world.snapshots


def _caller(owner: str) -> Caller:
    return Caller(owner, owner, scopes=frozenset({Scope.CREATE, Scope.READ}))
