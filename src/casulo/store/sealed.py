# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Rows that only the holder of a key can read. The store knows neither the key nor what is in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from casulo.store import engine
from casulo.store.schema import sandboxes, sealed, snapshots

_FORGET = sa.delete(sealed).where(sealed.c.holder == sa.bindparam("of"))  # run at every removal

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""


@dataclass(frozen=True)
class Sealed:
    """One encrypted thing of a sandbox or a snapshot, whose id is `holder`."""

    holder: str
    kind: str
    revision: int
    key_id: str
    content: bytes


class SealedRows:
    """The store's part that `control` keeps them in. They go with the row of their holder."""

    def __init__(self, call: Call, here: str) -> None:
        self._call = call
        self._here = here

    async def replace(self, holder: str, rows: Sequence[Sealed]) -> None:
        """Have these of one holder, and no others."""
        await self._call(_replace, holder, rows)

    async def of(self, holder: str) -> dict[str, Sealed]:
        """All of one holder, by kind."""
        found: dict[str, Sealed] = await self._call(_of, holder)
        return found

    async def any(self) -> bool:
        """Whether anything of this server is sealed: each of those that share a store has its own key."""
        found: bool = await self._call(_any, self._here)
        return found

    async def forget_strays(self) -> None:
        """Remove what belongs to nobody (any more)."""
        await self._call(_forget_strays)


def forget(connection: sa.Connection, holder: str) -> None:
    """Inside a transaction that removes the holder."""
    connection.execute(_FORGET, {"of": holder})


def _replace(connection: sa.Connection, holder: str, rows: Sequence[Sealed]) -> None:
    with engine.writing(connection):
        forget(connection, holder)
        if rows:
            connection.execute(sa.insert(sealed), [asdict(row) for row in rows])


def _of(connection: sa.Connection, holder: str) -> dict[str, Sealed]:
    with connection.begin():
        rows = connection.execute(sa.select(sealed).where(sealed.c.holder == holder)).mappings()
        return {row["kind"]: Sealed(**row) for row in rows}


def _any(connection: sa.Connection, here: str) -> bool:
    ours = sa.union(
        sa.select(sandboxes.c.id).where(sandboxes.c.server == here),
        sa.select(snapshots.c.id).where(snapshots.c.server == here),
    )
    first = sa.select(sealed.c.holder).where(sealed.c.holder.in_(ours)).limit(1)
    with connection.begin():
        return connection.execute(first).first() is not None


def _forget_strays(connection: sa.Connection) -> None:
    holders = sa.union(sa.select(sandboxes.c.id), sa.select(snapshots.c.id))
    with engine.writing(connection):
        connection.execute(sa.delete(sealed).where(sealed.c.holder.not_in(holders)))
