# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Several sandboxes that begin where one stands: all or none, which is the server's work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casulo.client.lifecycle import AsyncClient
    from casulo.client.sandbox import AsyncSandbox

LONGEST_SECONDS = 600.0


async def forked(
    parent: AsyncSandbox, client: AsyncClient, wish: Mapping[str, Any]
) -> tuple[AsyncSandbox, ...]:
    """The children, running."""
    limit = max(LONGEST_SECONDS, client.connection.request_timeout)
    made = await client.fork(parent.id, wish, timeout=limit)
    return tuple(type(parent)(info, client, endpoint=endpoint, created=True) for info, endpoint in made)
