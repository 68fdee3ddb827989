# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Filters, awkward metadata and paging through the official manager."""

from __future__ import annotations

import asyncio
import uuid

from opensandbox import Sandbox
from opensandbox.models.sandboxes import SandboxFilter

from scenarios.context import Context

SMALL = {"cpu": "100m", "memory": "64Mi"}


async def states_and_metadata(context: Context) -> None:
    run = uuid.uuid4().hex
    labels = [{"run": run, "n": str(n), "half": "low" if n < 2 else "high"} for n in range(3)]
    boxes = await asyncio.gather(*(_create(context, label) for label in labels))
    try:
        await boxes[0].pause()
        ids = [box.id for box in boxes]
        assert await _find(context, {"run": run}) == set(ids)
        assert await _find(context, {"run": run}, ["Paused"]) == {ids[0]}
        assert await _find(context, {"run": run}, ["Running"]) == set(ids[1:])
        assert await _find(context, {"run": run}, ["Paused", "running"]) == set(ids)
        assert await _find(context, {"run": run, "half": "low"}) == set(ids[:2])
        assert await _find(context, {"run": run, "half": "low", "n": "1"}) == {ids[1]}
        assert await _find(context, {"run": run, "n": "7"}) == set()
    finally:
        await asyncio.gather(*(box.destroy() for box in boxes))


async def awkward_filter_characters(context: Context) -> None:
    """Values that no label may have still must be parsed, and simply match nothing."""
    run = uuid.uuid4().hex
    box = await _create(context, {"run": run, "example.com/a_b.c-d": "v.1_2-3", "empty": ""})
    try:
        assert await _find(context, {"run": run, "example.com/a_b.c-d": "v.1_2-3"}) == {box.id}
        assert await _find(context, {"run": run, "empty": ""}) == {box.id}
        for key, value in (
            ("a b", "c&d=%"),
            ("k=v", "x"),
            ("k", "a+b"),
            ("k", "%2520"),
            ("ключ", "значение"),
        ):
            assert await _find(context, {"run": run, key: value}) == set()
    finally:
        await box.destroy()


async def paging(context: Context) -> None:
    run = uuid.uuid4().hex
    boxes = [await _create(context, {"run": run}) for _ in range(5)]
    try:
        newest_first = [box.id for box in reversed(boxes)]
        seen: list[str] = []
        async with context.manager() as manager:
            for page, count in ((1, 2), (2, 2), (3, 1)):
                wanted = SandboxFilter(metadata={"run": run}, page=page, page_size=2)
                answer = await manager.list_sandbox_infos(wanted)
                assert len(answer.sandbox_infos) == count
                assert answer.pagination.total_items == 5
                assert answer.pagination.total_pages == 3
                assert answer.pagination.has_next_page == (page < 3)
                seen += [info.id for info in answer.sandbox_infos]
            nothing = await manager.list_sandbox_infos(SandboxFilter(metadata={"run": "none"}))
            assert nothing.pagination.total_pages == 0 and not nothing.sandbox_infos
        assert seen == newest_first
    finally:
        await asyncio.gather(*(box.destroy() for box in boxes))


async def _create(context: Context, metadata: dict[str, str]) -> Sandbox:
    return await Sandbox.create(
        context.image, connection_config=context.config(), metadata=metadata, resource=dict(SMALL)
    )


async def _find(context: Context, metadata: dict[str, str], states: list[str] | None = None) -> set[str]:
    async with context.manager() as manager:
        wanted = SandboxFilter(metadata=metadata, states=states, page_size=50)
        return {info.id for info in (await manager.list_sandbox_infos(wanted)).sandbox_infos}
