# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Threads for work that blocks, asked from an event loop.

The standard library's pool wraps every call in two futures of two kinds, each with a lock, and wakes the loop
twice; a create makes several such calls. Here it is one queue, one future and one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Item = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Workers:
    """At most `most` threads, started when needed. `run` and `close` are for the event loop's thread."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Cancelling the wait does not stop the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._busy >= len(self._threads) and len(self._threads) < self._most:
            try:
                self._start()
            except RuntimeError:  # the system has no more; those that are there will do
                if not self._threads:
                    raise
        self._busy += 1
        self._items.put((loop, future, work))
        return await future

    def close(self) -> None:
        """Finish what was asked before, and end the threads; blocks until then."""
        for _ in self._threads:
            self._items.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        # Like those of the standard library, they do not keep the process from ending.
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            loop, future, work = item
            try:
                outcome, error = work(), None
            except BaseException as failure:  # carried to who asked, whatever it is
                outcome, error = None, failure
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left who could wait
                loop.call_soon_threadsafe(self._settle, future, outcome, error)
            del item, future, work, outcome, error  # nothing is kept alive by a thread that waits

    def _settle(self, future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():  # whoever asked went away
            return
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error if not isinstance(error, StopIteration) else RuntimeError(str(error)))
