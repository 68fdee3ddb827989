# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Rows of snapshots. Their changes are rare: each is a transaction that holds the write lock throughout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa

from casulo.model.snapshot import Snapshot
from casulo.model.template import PREFIX
from casulo.store import codec, engine
from casulo.store import sealed as sealing
from casulo.store.query import Page, SnapshotQuery
from casulo.store.schema import snapshots

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""

SnapshotChange = Callable[[Snapshot], Snapshot]


class SnapshotRows:
    """The store's part that `control` keeps snapshots in."""

    def __init__(self, call: Call, here: str) -> None:
        self._call = call
        self._here = here

    async def insert(self, snapshot: Snapshot) -> None:
        """Record a new one."""
        await self._call(_insert, snapshot)

    async def get(self, snapshot_id: str) -> Snapshot | None:
        """The snapshot, None when there is none (any more)."""
        found: Snapshot | None = await self._call(_get, snapshot_id)
        return found

    async def update(self, snapshot_id: str, change: SnapshotChange) -> Snapshot | None:
        """Apply `change` atomically; what it raises leaves an unchanged row. None when there is no row."""
        found: Snapshot | None = await self._call(_update, snapshot_id, change)
        return found

    async def remove(self, snapshot_id: str) -> None:
        """Delete the row. Idempotent."""
        await self._call(_remove, snapshot_id)

    async def list(self, query: SnapshotQuery) -> Page[Snapshot]:
        """One page, newest first; snapshots of the same microsecond stay in the order of their ids."""
        page: Page[Snapshot] = await self._call(_list, query)
        return page

    async def all(self) -> tuple[Snapshot, ...]:
        """Every row of this server, oldest first."""
        rows: tuple[Snapshot, ...] = await self._call(_all, self._here)
        return rows


def _insert(connection: sa.Connection, snapshot: Snapshot) -> None:
    with engine.writing(connection):
        connection.execute(sa.insert(snapshots), codec.to_snapshot_row(snapshot))


def _get(connection: sa.Connection, snapshot_id: str) -> Snapshot | None:
    with connection.begin():
        return _row(connection, snapshot_id)


def _row(connection: sa.Connection, snapshot_id: str) -> Snapshot | None:
    found = connection.execute(sa.select(snapshots).where(snapshots.c.id == snapshot_id)).mappings().first()
    return codec.from_snapshot_row(found) if found else None


def _update(connection: sa.Connection, snapshot_id: str, change: SnapshotChange) -> Snapshot | None:
    with engine.writing(connection):
        found = _row(connection, snapshot_id)
        if found is None:
            return None
        changed = change(found)
        if changed is not found:
            values = codec.to_snapshot_row(changed)
            connection.execute(sa.update(snapshots).where(snapshots.c.id == snapshot_id).values(values))
        return changed


def _remove(connection: sa.Connection, snapshot_id: str) -> None:
    with engine.writing(connection):
        connection.execute(sa.delete(snapshots).where(snapshots.c.id == snapshot_id))
        sealing.forget(connection, snapshot_id)


def _list(connection: sa.Connection, query: SnapshotQuery) -> Page[Snapshot]:
    wanted = sa.and_(sa.true(), *_conditions(query))
    rows = (
        sa.select(snapshots)
        .where(wanted)
        .order_by(snapshots.c.created_at.desc(), snapshots.c.id.desc())
        .limit(query.page_size)
        .offset((query.page - 1) * query.page_size)
    )
    with connection.begin():
        total = connection.scalar(sa.select(sa.func.count()).select_from(snapshots).where(wanted)) or 0
        items = tuple(codec.from_snapshot_row(row) for row in connection.execute(rows).mappings())
    return Page(items, total, query.page, query.page_size)


def _conditions(query: SnapshotQuery) -> list[sa.ColumnElement[bool]]:
    is_template = snapshots.c.id.startswith(PREFIX, autoescape=True)
    found: list[sa.ColumnElement[bool]] = [is_template if query.templates else sa.not_(is_template)]
    if query.owner is not None:
        found.append(snapshots.c.owner == query.owner)
    if query.sandbox_id is not None:
        found.append(snapshots.c.sandbox_id == query.sandbox_id)
    if query.name is not None:
        found.append(snapshots.c.name == query.name)
    if query.states:
        found.append(snapshots.c.state.in_(sorted(state.value for state in query.states)))
    return found


def _all(connection: sa.Connection, here: str) -> tuple[Snapshot, ...]:
    ours = sa.select(snapshots).where(snapshots.c.server == here)
    oldest_first = ours.order_by(snapshots.c.created_at, snapshots.c.id)
    with connection.begin():
        return tuple(codec.from_snapshot_row(row) for row in connection.execute(oldest_first).mappings())
