# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Rows of the servers that share a store, each under a lease that its process renews.

A row is one identity, a machine's; `holder` is the process that acts under it. All times are the
database's own, so that the clocks of the machines do not matter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from casulo.store import codec, engine
from casulo.store.schema import servers

Call = Callable[..., Awaitable[Any]]
"""Runs a function of a connection and arguments in the store's thread."""


@dataclass(frozen=True)
class Peer:
    """A server: where the others reach it, and whether its lease holds."""

    id: str
    url: str
    alive: bool


class ServerRows:
    """The store's part that knows the servers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def hold(self, server: str, url: str, holder: str, seconds: float) -> bool:
        """Take or renew the lease of `server`; False while another process holds it."""
        held: bool = await self._call(_hold, server, url, holder, seconds)
        return held

    async def give_up(self, server: str, holder: str) -> None:
        """End the lease at once, so that the next process need not wait for its end."""
        await self._call(_give_up, server, holder)

    async def all(self) -> dict[str, Peer]:
        """Every server that was ever seen, by id."""
        found: dict[str, Peer] = await self._call(_all)
        return found


def _hold(connection: sa.Connection, server: str, url: str, holder: str, seconds: float) -> bool:
    with engine.writing(connection):
        now = _now(connection)
        until = now + int(seconds * 1_000_000)
        row = {"url": url, "holder": holder, "lease_until": until}
        mine = (servers.c.holder == holder) | (servers.c.lease_until < now)
        changed = connection.execute(sa.update(servers).where(servers.c.id == server, mine).values(row))
        if changed.rowcount:
            return True
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(servers).values(id=server, **row))
        except sa.exc.IntegrityError:  # it is somebody else's
            return False
        return True


def _give_up(connection: sa.Connection, server: str, holder: str) -> None:
    with engine.writing(connection):
        mine = (servers.c.id == server) & (servers.c.holder == holder)
        connection.execute(sa.update(servers).where(mine).values(lease_until=0))


def _all(connection: sa.Connection) -> dict[str, Peer]:
    with connection.begin():
        now = _now(connection)
        rows = connection.execute(sa.select(servers))
        return {row.id: Peer(row.id, row.url, row.lease_until >= now) for row in rows}


def _now(connection: sa.Connection) -> int:
    """Microseconds by the database's clock; SQLite's is this machine's."""
    if connection.dialect.name == "postgresql":
        return codec.to_micros(connection.scalar(sa.select(sa.func.clock_timestamp())))  # type: ignore[arg-type]
    days = connection.scalar(sa.select(sa.func.julianday("now")))
    return int((float(days or 0) - 2440587.5) * 86_400_000_000)
