# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Messages that this server owes to receivers of webhooks, in the order in which they came up.

They are written in the transaction of the change that they tell of: there is neither a change without
its messages nor a message of a change that was not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from casulo.model.sandbox import Sandbox
from casulo.store import engine
from casulo.store.query import Tombstone
from casulo.store.schema import outbox

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Owed:
    """One message to one receiver. `serial` orders them; it only grows."""

    id: str
    receiver: str
    serial: int
    body: str


Compose = Callable[[Sandbox, Sandbox | Tombstone], Sequence[Owed]]
"""The messages of one change, from a sandbox to what it, or what is left of it, is then. Any thread."""


class Outbox:
    """The store's part that keeps them."""

    def __init__(self, call: Call, here: str) -> None:
        self._call = call
        self._here = here
        self._compose: Compose | None = None
        self._wake: Callable[[], object] = lambda: None

    def compose_with(self, compose: Compose, arrived: Callable[[], object]) -> None:
        """From now on keep what `compose` says; `arrived` is called on this loop after each commit."""
        loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(arrived)
        self._compose = compose

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to be told."""
        return self._compose is not None

    async def next(self, receiver: str, most: int) -> tuple[Owed, ...]:
        """The oldest messages that one receiver is still owed."""
        found: tuple[Owed, ...] = await self._call(_next, self._here, receiver, most)
        return found

    async def done(self, owed: Owed) -> None:
        """It was delivered, or given up. Idempotent."""
        await self._call(_done, owed.id)

    async def keep_only(self, receivers: Collection[str]) -> None:
        """Forget what is owed to others: nobody asks for it any more."""
        await self._call(_keep_only, self._here, receivers)

    def note(self, connection: sa.Connection, before: Sandbox, after: Sandbox | Tombstone) -> bool:
        """In the store's thread, inside the change's transaction. Whether there is something to send."""
        if self._compose is None:
            return False
        try:
            owed = self._compose(before, after)
        except Exception:  # the edge between what happens and those who are told of it
            _log.exception("webhook.not_composed", sandbox=before.id)
            return False
        if owed:
            connection.execute(sa.insert(outbox), [_row(each, self._here) for each in owed])
        return bool(owed)

    def committed(self) -> None:
        """In the store's thread, after a transaction with messages."""
        self._wake()


def _row(owed: Owed, here: str) -> dict[str, object]:
    return {
        "id": owed.id,
        "receiver": owed.receiver,
        "server": here,
        "serial": owed.serial,
        "body": owed.body,
    }


def _next(connection: sa.Connection, here: str, receiver: str, most: int) -> tuple[Owed, ...]:
    wanted = (
        sa.select(outbox)
        .where(outbox.c.server == here, outbox.c.receiver == receiver)
        .order_by(outbox.c.serial, outbox.c.id)
        .limit(most)
    )
    with connection.begin():
        return tuple(Owed(row.id, row.receiver, row.serial, row.body) for row in connection.execute(wanted))


def _done(connection: sa.Connection, owed_id: str) -> None:
    with engine.writing(connection):
        connection.execute(sa.delete(outbox).where(outbox.c.id == owed_id))


def _keep_only(connection: sa.Connection, here: str, receivers: Collection[str]) -> None:
    others = (outbox.c.server == here) & outbox.c.receiver.not_in(sorted(receivers))
    with engine.writing(connection):
        connection.execute(sa.delete(outbox).where(others))
