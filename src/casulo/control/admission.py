# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who may start now: a bounded number of starts per runtime, fair among owners, and none on a full machine.

Nobody is refused at once. A start waits for its turn and for room, for as long as the settings say,
and only then is told to come again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from casulo.control import hostroom
from casulo.control.hostroom import Room
from casulo.control.settings import AdmissionSettings
from casulo.control.transitions import Reason
from casulo.control.turns import Turns
from casulo.model.errors import Code, Unavailable

Tell = Callable[[str, str], Awaitable[None]]
"""Called with reason and message when a start has to wait, and when its wait is over."""

_LOOK_SECONDS = 0.5
_RETRY_AFTER_SECONDS = 5.0
_GOOD_FOR_SECONDS = 0.2


class Admission:
    """One per server."""

    def __init__(self, settings: AdmissionSettings, usual_starts: int, folder: Path) -> None:
        self._settings = settings
        self._usual_starts = usual_starts
        self._least = settings.least
        self._folder = folder
        self._turns: dict[str, Turns] = {}
        self._seen: Room | None = None
        self._seen_at = 0.0

    def waiting(self) -> dict[str, int]:
        """How many starts wait, by runtime."""
        return {name: turns.waiting for name, turns in self._turns.items()}

    @asynccontextmanager
    async def turn(
        self, runtime: str, owner: str, tell: Tell, *, patient: bool = False
    ) -> AsyncIterator[None]:
        """Inside, the start may go on. Unavailable when the wait was too long; `patient` ones wait on."""
        turns = self._turns_of(runtime)
        deadline = None if patient else self._now() + self._settings.max_wait_seconds
        waited = await self._wait_for_turn(turns, owner, deadline, tell)
        try:
            waited = await self._wait_for_room(deadline, tell) or waited
            if waited:
                await tell(Reason.STARTING, "")
            yield
        finally:
            turns.give_back()

    def _turns_of(self, runtime: str) -> Turns:
        if runtime not in self._turns:
            limit = self._settings.max_concurrent_starts.get(runtime, self._usual_starts)
            self._turns[runtime] = Turns(limit)
        return self._turns[runtime]

    async def _wait_for_turn(self, turns: Turns, owner: str, deadline: float | None, tell: Tell) -> bool:
        """Take a turn; whether that needed waiting."""
        waited = not turns.open
        if waited:
            await tell(Reason.QUEUED, f"waits for its turn; {turns.waiting} other starts wait too")
        try:
            async with asyncio.timeout_at(deadline) as timer:
                await turns.take(owner)
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._refused(f"{turns.waiting} other starts wait too") from None
        return waited

    async def _wait_for_room(self, deadline: float | None, tell: Tell) -> bool:
        """Wait for room on the machine; whether that was needed."""
        waited = False
        while why := hostroom.shortage(self._look(fresh=waited), self._least):
            left = _LOOK_SECONDS if deadline is None else deadline - self._now()
            if left <= 0:
                raise self._refused(why)
            if not waited:
                await tell(Reason.HOST_FULL, why)
            waited = True
            await asyncio.sleep(min(_LOOK_SECONDS, left))
        return waited

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _look(self, *, fresh: bool) -> Room:
        """What is free, as of a moment ago: looking takes a good part of a millisecond."""
        now = self._now()
        if self._seen is None or fresh or now - self._seen_at > _GOOD_FOR_SECONDS:
            self._seen, self._seen_at = hostroom.look(self._folder), now
        return self._seen

    def _refused(self, why: str) -> Unavailable:
        return Unavailable(
            f"no sandbox could be started for {self._settings.max_wait_seconds:g} s: {why}",
            code=Code.CAPACITY_EXHAUSTED,
            hint="delete sandboxes that are no longer needed, or ask again later",
            retry_after=_RETRY_AFTER_SECONDS,
        )
