# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The one part of a sandbox that its owner may rewrite."""

from __future__ import annotations

import asyncio

import pytest

from casulo.model.errors import Code, InvalidRequest, NotFound
from casulo.store.query import Query

from .conftest import Service


async def test_a_patch_sets_and_removes_for_good(service: Service) -> None:
    made = await service.create(metadata={"env": "dev", "team": "infra"})
    patched = await service.lifecycle.patch_metadata(made.id, {"env": "stage", "team": None, "gone": None})
    assert patched.metadata == {"env": "stage"}
    assert (await service.lifecycle.get(made.id)).metadata == {"env": "stage"}
    assert (await service.lifecycle.list(Query(metadata={"env": "stage"}))).total == 1
    for old in ({"env": "dev"}, {"team": "infra"}):
        assert (await service.lifecycle.list(Query(metadata=old))).total == 0


@pytest.mark.parametrize(
    "changes",
    [{"opensandbox.io/x": "a"}, {"opensandbox.io/x": None}, {"a": "b c"}, {"-a": "b"}, {"a": "x" * 64}],
)
async def test_a_bad_label_changes_nothing(service: Service, changes: dict[str, str | None]) -> None:
    made = await service.create(metadata={"env": "dev"})
    with pytest.raises(InvalidRequest) as failure:
        await service.lifecycle.patch_metadata(made.id, {"env": "stage", **changes})
    assert failure.value.code == Code.INVALID_METADATA_LABEL
    assert (await service.lifecycle.get(made.id)).metadata == {"env": "dev"}


async def test_patches_at_the_same_time_lose_nothing(service: Service) -> None:
    made = await service.create()
    await asyncio.gather(*(service.lifecycle.patch_metadata(made.id, {f"k{n}": str(n)}) for n in range(50)))
    assert (await service.lifecycle.get(made.id)).metadata == {f"k{n}": str(n) for n in range(50)}


async def test_an_unknown_sandbox_is_not_found(service: Service) -> None:
    with pytest.raises(NotFound):
        await service.lifecycle.patch_metadata("unknown", {"a": "b"})
