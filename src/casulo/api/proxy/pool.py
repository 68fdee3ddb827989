# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Connections to sandboxes: how many at once, and which idle one may be used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from casulo.api.proxy.upstream import Connection
from casulo.model.errors import Code, RuntimeFailure, Unavailable

_IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Peer:
    """Where to connect. The sandbox's id is part of it, since addresses are given out again."""

    sandbox_id: str
    host: str
    port: int


class Pool:
    """At most `limit` connections, busy and idle together. Waiting for one is limited as connecting is."""

    def __init__(self, *, limit: int, connect_timeout: float, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._idle_seconds = idle_seconds
        self._slots = asyncio.Semaphore(limit)
        self._busy: set[Connection] = set()
        self._idle: dict[Connection, tuple[Peer, asyncio.TimerHandle]] = {}

    @property
    def counts(self) -> tuple[int, int]:
        """Busy and idle connections."""
        return len(self._busy), len(self._idle)

    @asynccontextmanager
    async def connection(self, peer: Peer, *, fresh: bool = False) -> AsyncIterator[Connection]:
        """A connection to `peer` for one exchange; `fresh` never takes an idle one.

        Whatever happens inside, the connection ends up closed or idle and its place is free again.
        """
        await self._wait_for_slot()
        try:
            connection = (None if fresh else self._take(peer)) or await self._connect(peer)
            self._busy.add(connection)
            try:
                yield connection
            finally:
                self._busy.discard(connection)
                self._put_back(peer, connection)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close everything, exchanges in progress included."""
        for connection in [*self._busy, *self._idle]:
            connection.close()
        for _, timer in self._idle.values():
            timer.cancel()
        self._idle.clear()

    async def _wait_for_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"all {self._limit} connections of the server proxy are in use",
                code=Code.BACKEND_BUSY,
                hint="use the direct endpoint, or raise [proxy] max_connections",
            ) from None

    def _take(self, peer: Peer) -> Connection | None:
        for connection in reversed([c for c, (p, _) in self._idle.items() if p == peer]):
            self._idle.pop(connection)[1].cancel()
            if not connection.closed:
                return connection
        return None

    async def _connect(self, peer: Peer) -> Connection:
        if len(self._busy) + len(self._idle) >= self._limit and self._idle:
            self._drop(next(iter(self._idle)))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                return (await loop.create_connection(Connection, peer.host, peer.port))[1]
        except (OSError, TimeoutError) as error:
            raise RuntimeFailure(
                f"cannot connect to sandbox {peer.sandbox_id}: {error or 'no answer in time'}",
                code=Code.BACKEND_CONNECTION_FAILED,
                hint="its daemon does not answer; read its state with `osb sandbox get`",
            ) from None

    def _put_back(self, peer: Peer, connection: Connection) -> None:
        if not connection.finish():
            connection.close()
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._drop, connection)
        self._idle[connection] = (peer, timer)

    def _drop(self, connection: Connection) -> None:
        held = self._idle.pop(connection, None)
        if held is not None:
            held[1].cancel()
            connection.close()
