# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The host's end of the line to the daemon in a machine. What comes from there is not to be trusted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from casulo.model.errors import Code, RuntimeFailure, TimedOut

_LONGEST_LINE = 256 << 10
_MOST_WAITING = 64


class Link:
    """One open line: orders go in, answers and events come back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, socket: Path) -> Link:
        """Connect to the monitor, which passes the line on."""
        try:
            return cls(*await asyncio.open_unix_connection(str(socket), limit=_LONGEST_LINE))
        except OSError as error:
            raise RuntimeFailure(f"the line to the machine cannot be opened: {error.strerror}") from error

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._writer.close()

    def send(self, order: dict[str, Any]) -> None:
        """Send an order that is answered by an event."""
        self._writer.write(json.dumps(order).encode() + b"\n")

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
            while line := await self._reader.readline():
                self._take(line)
        except (OSError, ValueError):  # it broke, or the guest sent an endless line
            pass
        finally:
            self._end()

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

    def _end(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_hung_up())
        with contextlib.suppress(asyncio.QueueFull):
            self._events.put_nowait(None)


def _hung_up() -> RuntimeFailure:
    return RuntimeFailure(
        "the machine ended",
        code=Code.SANDBOX_START_FAILED,
        hint="the last lines of its console are in the sandbox's log",
    )
