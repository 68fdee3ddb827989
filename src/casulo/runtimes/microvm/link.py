# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The host's end of the line to the daemon in a machine. What comes from there is not to be trusted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import Any

from casulo.model.errors import Code, RuntimeFailure, TimedOut
from casulo.runtimes.microvm.wire import Dial, Wire

_MOST_WAITING = 64


class Link:
    """One open line: orders go in, answers and events come back."""

    def __init__(self, wire: Wire | None, dial: Dial | None) -> None:
        self._wire = wire
        self._dial = dial
        self._unsent: list[bytes] = []
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, dial: Dial, *, again: bool = False) -> Link:
        """Connect. With `again` that happens when the guest runs, and whenever the line broke."""
        try:
            return cls(None, dial) if again else cls(await dial(), None)
        except OSError as error:
            raise RuntimeFailure(f"the line to the machine cannot be opened: {error.strerror}") from error

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._wire:
            self._wire.close()

    def send(self, order: dict[str, Any]) -> None:
        """Send an order that is answered by an event, as soon as there is a line."""
        line = json.dumps(order).encode() + b"\n"
        if self._wire:
            self._wire.write(line)
        else:
            self._unsent.append(line)

    async def event(self, timeout: float) -> bytes:
        """The next event as it came."""
        if self._task.done() and self._events.empty():
            raise _hung_up()
        try:
            async with asyncio.timeout(timeout):
                event = await self._events.get()
        except TimeoutError as error:
            raise TimedOut(
                f"the machine's daemon said nothing within {timeout:g} s", code=Code.SANDBOX_START_TIMEOUT
            ) from error
        if event is None:
            raise _hung_up()
        return event

    async def ask(self, do: str, timeout: float, **more: Any) -> dict[str, Any]:
        """Send an order and wait for its answer. RuntimeFailure when the guest could not do it."""
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            if self._task.done():
                raise _hung_up()
            self.send({"do": do, "id": number, **more})
            async with asyncio.timeout(timeout):
                body = await answer
        except TimeoutError as error:
            raise TimedOut(f"the machine's daemon did not {do} within {timeout:g} s") from error
        finally:
            self._answers.pop(number, None)
        if body.get("error"):
            raise RuntimeFailure(f"the machine's daemon could not {do}: {body['error']}")
        return body

    async def _read(self) -> None:
        try:
            if self._wire:
                await self._take_all(self._wire)
            while self._dial:
                await self._take_all(await self._dialled(self._dial))
                self._lose()
        except (OSError, ValueError):  # it broke for good, or the guest sent an endless line
            pass
        finally:
            self._end()

    async def _dialled(self, dial: Dial) -> Wire:
        self._wire = await dial()
        while self._unsent:
            self._wire.write(self._unsent.pop(0))
        return self._wire

    async def _take_all(self, wire: Wire) -> None:
        while line := await wire.reader.readline():
            self._take(line)

    def _lose(self) -> None:
        """The line broke, and with it what was asked over it."""
        if self._wire:
            self._wire.close()
            self._wire = None
        self._fail(RuntimeFailure("the line to the machine broke"))

    def _take(self, line: bytes) -> None:
        try:
            body = json.loads(line)
        except ValueError:
            return
        if not isinstance(body, dict):
            return
        answer = self._answers.get(body["id"]) if isinstance(body.get("id"), int) else None
        if answer is not None:
            if not answer.done():
                answer.set_result(body)
            return
        with contextlib.suppress(asyncio.QueueFull):  # nobody is interested in so many
            self._events.put_nowait(line)

    def _fail(self, error: RuntimeFailure) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _end(self) -> None:
        self._fail(_hung_up())
        with contextlib.suppress(asyncio.QueueFull):
            self._events.put_nowait(None)


def _hung_up() -> RuntimeFailure:
    return RuntimeFailure(
        "the machine ended",
        code=Code.SANDBOX_START_FAILED,
        hint="the last lines of its console are in the sandbox's log",
    )
