# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Messages that this server still owes to receivers of webhooks, in the order in which they came up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from casulo.store import engine
from casulo.store.schema import outbox

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""


@dataclass(frozen=True)
class Owed:
    """One message to one receiver. `serial` orders them; it only grows."""

    id: str
    receiver: str
    serial: int
    body: str


class Outbox:
    """The store's part that keeps them."""

    def __init__(self, call: Call, here: str) -> None:
        self._call = call
        self._here = here

    async def put(self, owed: Sequence[Owed]) -> None:
        """Keep messages until they are `done`."""
        await self._call(_put, owed, self._here)

    async def done(self, ids: Sequence[str]) -> None:
        """They were delivered, or given up. Idempotent."""
        await self._call(_done, ids)

    async def all(self) -> tuple[Owed, ...]:
        """What an earlier process of this server left, oldest first."""
        found: tuple[Owed, ...] = await self._call(_all, self._here)
        return found


def _put(connection: sa.Connection, owed: Sequence[Owed], here: str) -> None:
    rows = [
        {"id": o.id, "receiver": o.receiver, "server": here, "serial": o.serial, "body": o.body} for o in owed
    ]
    with engine.writing(connection):
        connection.execute(sa.insert(outbox), rows)


def _done(connection: sa.Connection, ids: Sequence[str]) -> None:
    with engine.writing(connection):
        connection.execute(sa.delete(outbox).where(outbox.c.id.in_(ids)))


def _all(connection: sa.Connection, here: str) -> tuple[Owed, ...]:
    mine = sa.select(outbox).where(outbox.c.server == here).order_by(outbox.c.serial, outbox.c.id)
    with connection.begin():
        return tuple(Owed(row.id, row.receiver, row.serial, row.body) for row in connection.execute(mine))
