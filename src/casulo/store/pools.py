# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Rows of pools: what was asked for, never their members, which are nobody's until they are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa

from casulo.model.pool import Capacity, Pool, Template
from casulo.store import codec, engine
from casulo.store.schema import pools

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""


class PoolRows:
    """The store's part that `control` keeps pools in."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def add(self, pool: Pool) -> bool:
        """Write a new pool; False when there is one of its name."""
        added: bool = await self._call(_add, pool)
        return added

    async def resize(self, name: str, capacity: Capacity) -> Pool | None:
        """Write another size, and count it; None when there is no such pool (any more)."""
        found: Pool | None = await self._call(_resize, name, capacity)
        return found

    async def remove(self, name: str) -> None:
        """Forget a pool. Idempotent."""
        await self._call(_remove, name)

    async def all(self) -> tuple[Pool, ...]:
        """Every pool, by name."""
        found: tuple[Pool, ...] = await self._call(_all)
        return found


def _add(connection: sa.Connection, pool: Pool) -> bool:
    row = {
        "name": pool.name,
        "template": codec.dump(Template, pool.template),
        "capacity": codec.dump(Capacity, pool.capacity),
        "created_at": codec.to_micros(pool.created_at),
        "revision": pool.revision,
        "refuses": pool.refuses,
    }
    try:
        with engine.writing(connection):
            connection.execute(sa.insert(pools), row)
    except sa.exc.IntegrityError:
        return False
    return True


def _resize(connection: sa.Connection, name: str, capacity: Capacity) -> Pool | None:
    named = pools.c.name == name
    values = {"capacity": codec.dump(Capacity, capacity), "revision": pools.c.revision + 1}
    with engine.writing(connection):
        connection.execute(sa.update(pools).where(named).values(values))
        row = connection.execute(sa.select(pools).where(named)).mappings().first()
        return _pool(row) if row else None


def _remove(connection: sa.Connection, name: str) -> None:
    with engine.writing(connection):
        connection.execute(sa.delete(pools).where(pools.c.name == name))


def _all(connection: sa.Connection) -> tuple[Pool, ...]:
    with connection.begin():
        rows = connection.execute(sa.select(pools).order_by(pools.c.name)).mappings()
        return tuple(_pool(row) for row in rows)


def _pool(row: sa.RowMapping) -> Pool:
    template = codec.load(Template, row["template"])
    capacity = codec.load(Capacity, row["capacity"])
    assert template is not None and capacity is not None
    moment = codec.from_micros(row["created_at"])
    return Pool(row["name"], template, capacity, moment, row["revision"], row["refuses"])
