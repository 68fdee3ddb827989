# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""This server among those that share a store.

Sandboxes are on one machine, so each has one server that can do anything about it: expiry,
reconciliation and every change are that server's. What a lease guards against is two processes under
one name, such as a data directory that was copied to a second machine: only the holder acts, and one
that could not renew its lease in time stops acting until it has it again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from casulo.model.errors import CasuloError, Code, Conflict, Unavailable
from casulo.store.servers import Peer
from casulo.store.store import Store

Beat = Callable[[], Awaitable[None]]
"""Called after each renewal, to look at what other servers changed."""

_log = structlog.get_logger(__name__)


class Membership:
    """One per server. Without a name there is nobody else, and nothing of this happens."""

    def __init__(self, store: Store, url: str, lease_seconds: float, beats: Sequence[Beat] = ()) -> None:
        self._store = store
        self._url = url
        self._lease = lease_seconds
        self._beats = beats
        self._holder = secrets.token_hex(8)
        self._held_until = 0.0
        self._peers: Mapping[str, Peer] = {}
        self._beating: asyncio.Task[None] | None = None

    @property
    def shared(self) -> bool:
        """Whether others may use the store too."""
        return bool(self._store.here)

    @property
    def acts(self) -> bool:
        """Whether this process is the one that acts under its name."""
        return not self.shared or time.monotonic() < self._held_until

    async def ensure(self) -> None:
        """Unavailable where another process acts under this name, such as after a long standstill."""
        if not self.acts and not await self._renew():
            raise Unavailable(
                f"another process acts as the server {self._store.here!r} by now",
                code=Code.SERVER_AWAY,
                hint="two servers have one name: was a data directory copied? Stop one of them",
                retry_after=self._lease,
            )

    async def peer(self, server: str) -> Peer:
        """Another server; Unavailable when it does not live; one that was away may be back since."""
        found = self._peers.get(server)
        if found is None or not found.alive:
            self._peers = await self._store.servers.all()
            found = self._peers.get(server)
        if found is None or not found.alive:
            raise self.away(server)
        return found

    def away(self, server: str) -> Unavailable:
        """What to say where it does not answer."""
        return Unavailable(
            f"the server {server} that has it on its machine does not answer",
            code=Code.SERVER_AWAY,
            hint="it comes back with that server; nothing else can reach its machine",
            retry_after=self._lease,
        )

    async def servers(self) -> list[Peer]:
        """All that were ever seen; none where the store is this server's alone."""
        return list((await self._store.servers.all()).values()) if self.shared else []

    async def open(self) -> None:
        """Take the lease, waiting for the end of one that a killed process left. Conflict: another lives."""
        if not self.shared:
            return
        deadline = time.monotonic() + self._lease + 1
        while not await self._renew():
            if time.monotonic() > deadline:
                raise Conflict(
                    f"another process acts as the server {self._store.here!r} of this store",
                    code=Code.SERVER_ALREADY_RUNNING,
                    hint="was its data directory copied? Delete `server-id` in the copy",
                )
            await asyncio.sleep(self._lease / 15)
        self._beating = asyncio.get_running_loop().create_task(self._beat(), name="lease")

    async def close(self) -> None:
        """Give the lease up."""
        if self._beating:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._held_until = 0.0
            try:
                await self._store.servers.give_up(self._store.here, self._holder)
            except CasuloError as error:  # then it ends by itself
                _log.warning("lease.not_given_up", error=str(error))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                if not await self._renew():
                    _log.error("lease.lost", server=self._store.here)
                for beat in self._beats:
                    await beat()
            except Exception:  # the edge of a supervisor: the lease must be tried again whatever happened
                _log.exception("lease.not_renewed", server=self._store.here)

    async def _renew(self) -> bool:
        """Time is counted from before the question, so that the database never thinks it over earlier."""
        asked = time.monotonic()
        here = self._store.here
        if not await self._store.servers.hold(here, self._url, self._holder, self._lease):
            return False
        self._held_until = asked + self._lease
        self._peers = await self._store.servers.all()
        return True
