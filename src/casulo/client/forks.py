# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Several sandboxes from one snapshot: all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casulo.model.errors import Code, InvalidRequest

if TYPE_CHECKING:
    from casulo.client.lifecycle import AsyncClient
    from casulo.client.sandbox import AsyncSandbox
    from casulo.client.snapshots import Snapshot

PARENT = "casulo.parent"
"""Key of the metadata that names the sandbox which a child was forked from."""

_MOST = 64


async def forked(
    parent: AsyncSandbox, client: AsyncClient, snapshot: Snapshot, count: int, options: Mapping[str, Any]
) -> tuple[AsyncSandbox, ...]:
    """The children, running."""
    if not 1 <= count <= _MOST:
        raise InvalidRequest(
            f"fork: a sandbox has 1 to {_MOST} children at once", code=Code.INVALID_PARAMETER
        )
    child = type(parent).create
    metadata = {**parent.info.metadata, PARENT: parent.id}
    starting = [
        asyncio.ensure_future(child(snapshot=snapshot, client=client, metadata=metadata, **options))
        for _ in range(count)
    ]
    try:
        return tuple(await asyncio.gather(*starting))
    except BaseException:
        await _undo(starting)
        raise


async def _undo(starting: Sequence[asyncio.Future[AsyncSandbox]]) -> None:
    for task in starting:
        task.cancel()
    for made in await asyncio.gather(*starting, return_exceptions=True):
        if not isinstance(made, BaseException):
            await made.kill()
