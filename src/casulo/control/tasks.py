# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Background work with an owner, and one-at-a-time access to each sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from casulo.model.errors import CasuloError

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Tasks:
    """Every task of the service. A failure that nobody waits for is logged, never lost."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `work`; it runs to its end whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Start `work` and wait. Cancelling the wait does not cancel the work."""
        return await asyncio.shield(self.spawn(work, name))

    async def settled(self) -> None:
        """Wait until nothing is running any more."""
        while self._running:
            await asyncio.wait(self._running)

    async def close(self, timeout: float) -> None:
        """Let the work finish for a while, then cancel what is left."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        for task in self._running:
            task.cancel()
        await self.settled()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, CasuloError):
            _log.info("task.failed", task=task.get_name(), code=error.code, message=error.message)
        elif error is not None:
            _log.error("task.broke", task=task.get_name(), exc_info=error)


class Locks:
    """A lock for each sandbox that somebody is working on; waiting is first come, first served."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Inside, nobody else holds `key`."""
        lock, users = self._held.get(key, (asyncio.Lock(), 0))
        self._held[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held[key]
            if users == 1:
                del self._held[key]
            else:
                self._held[key] = (lock, users - 1)
