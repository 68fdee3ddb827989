# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ends sandboxes whose time has come. The store says who is due; nothing is kept in memory.

Time here is the wall clock, since the promise is a date. The sleeper never sleeps long, so a clock
that is set forward or back is noticed within `RECHECK_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import structlog

from casulo.control.context import Context
from casulo.control.stops import Stops

RECHECK_SECONDS = 3.0
TOMBSTONE_LIFE = timedelta(hours=24)
_PURGE_EVERY_SECONDS = 600.0
_log = structlog.get_logger(__name__)


class Expiry:
    """One loop: end what is due, do the chores, forget old tombstones, sleep.

    Chores are what other parts owe; each is called every few seconds and must return at once.
    """

    def __init__(self, context: Context, stops: Stops, chores: Sequence[Callable[[], None]] = ()) -> None:
        self._context = context
        self._stops = stops
        self._chores = chores
        self._changed = asyncio.Event()
        self._planned: datetime | None = None
        self._purge_at = 0.0

    def notice(self, moment: datetime | None) -> None:
        """A sandbox now ends at `moment`; wakes the sleeper if that is before its next look."""
        if moment is not None and (self._planned is None or moment < self._planned):
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            seconds = await self._round()
            self._planned = self._context.now() + timedelta(seconds=seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _round(self) -> float:
        """Do what is due and return how long nothing will be."""
        if not self._context.acts():
            return RECHECK_SECONDS
        try:
            for sandbox in await self._context.store.due(self._context.now()):
                await self._stops.expire(sandbox.id)
            for chore in self._chores:
                chore()
            await self._purge()
            return self._until(await self._context.store.next_due())
        except Exception:  # the edge of a supervisor: expiry must outlive any failure
            _log.exception("expiry.round_failed")
            return RECHECK_SECONDS

    def _until(self, moment: datetime | None) -> float:
        if moment is None:
            return RECHECK_SECONDS
        return min(max((moment - self._context.now()).total_seconds(), 0.0), RECHECK_SECONDS)

    async def _purge(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_EVERY_SECONDS
            await self._context.store.purge(self._context.now() - TOMBSTONE_LIFE)
