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

    async def put(self, pool: Pool) -> None:
        """Write a pool, new or changed."""
        await self._call(_put, pool)

    async def remove(self, name: str) -> None:
        """Forget a pool. Idempotent."""
        await self._call(_remove, name)

    async def all(self) -> tuple[Pool, ...]:
        """Every pool, by name."""
        found: tuple[Pool, ...] = await self._call(_all)
        return found


def _put(connection: sa.Connection, pool: Pool) -> None:
    row = {
        "name": pool.name,
        "template": codec.dump(Template, pool.template),
        "capacity": codec.dump(Capacity, pool.capacity),
        "created_at": codec.to_micros(pool.created_at),
        "revision": pool.revision,
        "refuses": pool.refuses,
    }
    with engine.writing(connection):
        connection.execute(sa.delete(pools).where(pools.c.name == pool.name))
        connection.execute(sa.insert(pools), row)


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
