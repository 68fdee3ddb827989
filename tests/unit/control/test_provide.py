# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Images that are slow to come, do not come, or need a login."""

from __future__ import annotations

import asyncio

import pytest

from casulo.model.credentials import Credentials
from casulo.model.errors import Code, Conflict, NotFound
from casulo.model.states import State
from casulo.store.query import Query

from .conftest import Service, until


async def test_b045_slow_images_hold_up_no_other_start(service: Service) -> None:
    service.runtime.may_provide.clear()
    slow = [asyncio.create_task(service.create()) for _ in range(5)]
    await until(lambda: _provided(service, 5))
    service.runtime.may_provide.set()
    service.runtime.may_create.clear()
    service.runtime.may_provide.clear()
    quick = asyncio.create_task(service.create())
    await until(lambda: _provided(service, 6))
    assert service.runtime.creating == 4, "those that have their image start, as many as may"
    service.runtime.may_provide.set()
    service.runtime.may_create.set()
    made = await asyncio.gather(*slow, quick)
    assert all(sandbox.status.state is State.RUNNING for sandbox in made)


async def _provided(service: Service, count: int) -> bool:
    return len(service.runtime.provided) == count


@pytest.mark.parametrize("repeated", [1, 2])
async def test_b043_a_delete_while_the_image_comes_ends_it(service: Service, repeated: int) -> None:
    service.runtime.may_provide.clear()
    creating = asyncio.create_task(service.create())
    await until(lambda: _provided(service, 1))
    sandbox_id = (await service.lifecycle.list(Query())).items[0].id
    await asyncio.gather(*(service.lifecycle.delete(sandbox_id) for _ in range(repeated)))
    with pytest.raises(Conflict) as failure:
        await creating
    assert failure.value.code == Code.SANDBOX_DELETED_DURING_CREATE
    service.runtime.may_provide.set()
    await service.lifecycle.settled()
    assert not service.world.created and not service.world.boxes


async def test_an_image_that_does_not_come_leaves_nothing(service: Service) -> None:
    service.runtime.provide_error = NotFound("no such image", code=Code.IMAGE_NOT_FOUND)
    with pytest.raises(NotFound) as failure:
        await service.create()
    assert failure.value.code == Code.IMAGE_NOT_FOUND
    assert (await service.lifecycle.list(Query())).total == 0
    assert sum(service.world.destroyed.values()) == 1, "what was provided in part is given back"


async def test_a_login_reaches_the_runtime_and_no_store(service: Service) -> None:
    login = Credentials("user", "very-secret")
    made = await service.create(credentials=login)
    assert service.runtime.provided == [(made.id, login)]
    assert "very-secret" not in repr(await service.store.get(made.id))
    assert "very-secret" not in repr(login)
