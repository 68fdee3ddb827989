# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The sync face of async code: one event loop in one thread, and one-line derivations.

    class Files(Twin[AsyncFiles]):
        read = blocking(AsyncFiles.read)         # same parameters, the awaited result
        stream = iterating(AsyncFiles.stream)    # same parameters, a plain iterator

Handlers (`on_…`) given to a blocking call run in the caller's thread: they may use the sync API themselves.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Twin(Generic[S]):
    """A sync object that stands for the async object `source`."""

    def __init__(self, source: S) -> None:
        self._source = source


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """A method of a Twin that runs `method` of its source to the end."""

    @functools.wraps(method)
    def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _finish(functools.partial(method, self._source), *args, **kwargs)

    return call


def iterating(
    method: Callable[Concatenate[S, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """A method of a Twin that iterates over what `method` of its source yields."""

    @functools.wraps(method)
    def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        portal = _portal()
        items = method(self._source, *args, **kwargs)
        try:
            while batch := portal.run(_next(items)):
                yield from batch
        finally:
            portal.dispose(items.aclose())

    return call


def making(
    twin: Callable[[], Callable[[S], T]], function: Callable[P, Coroutine[Any, Any, S]]
) -> Callable[P, T]:
    """A function that runs `function` to the end and returns its result's twin."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return twin()(_finish(function, *args, **kwargs))

    return call


def wrapping(
    twin: Callable[[], Callable[[R], T]], method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Any, P], T]:
    """A method of a Twin that runs `method` of its source to the end and returns its result's twin."""

    @functools.wraps(method)
    def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin()(_finish(functools.partial(method, self._source), *args, **kwargs))

    return call


def finishing(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """A function that runs `function` to the end."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return _finish(function, *args, **kwargs)

    return call


def _finish(function: Callable[..., Coroutine[Any, Any, R]], *args: Any, **kwargs: Any) -> R:
    portal = _portal()
    caller = _Caller(portal.loop)
    for name, value in kwargs.items():
        if name.startswith("on_") and value is not None:
            kwargs[name] = caller.handler(value)
    return portal.run(function(*args, **kwargs), caller)


async def _next(items: AsyncGenerator[R, None]) -> list[R]:
    """The next item in a list, or an empty list at the end: StopIteration cannot cross threads."""
    async for item in items:
        return [item]
    return []


class _Caller:
    """The thread that waits for a result; until it comes, the loop can have things done there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def serve(self) -> None:
        """Do what is asked until `release`."""
        while (job := self._jobs.get()) is not None:
            job()

    def release(self, _: object = None) -> None:
        """Let `serve` return."""
        self._jobs.put(None)

    def handler(self, function: Callable[..., object]) -> Callable[..., Coroutine[Any, Any, object]]:
        """`function`, to be called from the loop and run in the waiting thread."""

        async def ask(*args: Any) -> object:
            answer: asyncio.Future[object] = self._loop.create_future()
            self._jobs.put(functools.partial(self._perform, function, args, answer))
            return await answer

        return ask

    def _perform(
        self, function: Callable[..., object], args: tuple[Any, ...], answer: asyncio.Future[object]
    ) -> None:
        try:
            result = function(*args)
        except Exception as error:  # not ours to judge: it travels through the call and back to its caller
            self._loop.call_soon_threadsafe(_settle, answer, None, error)
        else:
            self._loop.call_soon_threadsafe(_settle, answer, result, None)


def _settle(answer: asyncio.Future[object], result: object, error: Exception | None) -> None:
    if answer.done():  # the call was cancelled while its handler ran
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class _Portal:
    """The loop's thread. It is a daemon: it must not keep a finished program alive."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="casulo-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R], caller: _Caller | None = None) -> R:
        """Run it on the loop; an interrupt of this thread cancels it and waits for its clean end."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the sync API cannot be used on its own event loop; use the async one there")
        caller = caller or _Caller(self.loop)
        tasks: list[asyncio.Task[R]] = []

        def begin() -> None:
            tasks.append(self.loop.create_task(coroutine))
            tasks[0].add_done_callback(caller.release)

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                coroutine.close()
                caller.release()

        try:
            self.loop.call_soon_threadsafe(begin)
            caller.serve()
        except BaseException:
            self.loop.call_soon_threadsafe(stop)
            caller.serve()
            raise
        return tasks[0].result()

    def dispose(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a clean-up. The garbage collector may ask for it on the loop itself, which cannot wait."""
        if threading.current_thread() is self._thread:
            self.loop.create_task(coroutine)
        else:
            self.run(coroutine)


_lock = threading.Lock()
_portals: list[_Portal] = []


def _portal() -> _Portal:
    """The one portal of this process; a forked child gets its own, for threads do not survive a fork."""
    with _lock:
        if not _portals or _portals[0].pid != os.getpid():
            _portals[:] = [_Portal()]
        return _portals[0]
