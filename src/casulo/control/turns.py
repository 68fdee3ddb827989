# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A bounded number of turns, given in order to each owner and in rotation among owners."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Turns:
    """At most `limit` holders at once. Somebody with a thousand waiting delays others by one turn each."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def open(self) -> bool:
        """Whether the next one to ask need not wait."""
        return self._free > 0

    async def take(self, owner: str) -> None:
        """Wait for a turn and take it. Cancelling the wait gives up the place in the queue."""
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it came at the same moment
            else:
                self._forget(owner, turn)
            raise

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]

    def give_back(self) -> None:
        """End a turn: it goes to the first of the owner whose last one is longest ago."""
        while self._waiting:
            owner, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[owner] = queue  # behind all others
            if not turn.done():  # else its task was cancelled and has not run since
                turn.set_result(None)
                return
        self._free += 1
