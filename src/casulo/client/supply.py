# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Feeding a running command: its input is sent while its output comes back."""

from __future__ import annotations

import asyncio
import contextlib

from casulo.client.channel import Channel
from casulo.client.multipart import Source, pieces
from casulo.client.stream import Exit
from casulo.model.errors import CasuloError, Conflict, NotFound

_INTERRUPT_SECONDS = 3.0


class Supply:
    """The input of one command. What the command does not read is lost, as with a local pipe.

    When the source fails, the command would wait for input for ever: it is interrupted, and `check` tells.
    """

    def __init__(self, channel: Channel, source: Source | None) -> None:
        self._channel = channel
        self._source = source
        self._command_id = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None

    def start(self, command_id: str) -> None:
        """Begin to send, if there is anything to send."""
        if self._source is not None:
            self._command_id = command_id
            sending = asyncio.create_task(feed(self._channel, command_id, self._source, close=True))
            sending.add_done_callback(self._ended)
            self._tasks.append(sending)

    async def stop(self) -> None:
        """The command ended or nobody waits for it any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self, end: Exit) -> None:
        """Raise why the source failed, unless the command had ended by itself and just left input unread."""
        if self._error is not None and (end.interrupted or not isinstance(self._error, CasuloError)):
            raise self._error

    def _ended(self, sending: asyncio.Task[None]) -> None:
        if sending.cancelled() or sending.exception() is None:
            return
        error = sending.exception()
        if not isinstance(error, Conflict | NotFound):  # those say that it takes no input any more
            self._error = error
            self._tasks.append(asyncio.create_task(try_to_interrupt(self._channel, self._command_id)))


async def feed(channel: Channel, command_id: str, data: Source, *, close: bool) -> None:
    """POST /command/{id}/stdin: write `data` as the command reads it, however long that takes."""
    async with channel.stream(
        "POST",
        f"/command/{command_id}/stdin",
        query=[("close", "true")] if close else [],
        body=pieces(data),
        write_timeout=None,
    ) as incoming:
        async for _ in incoming.chunks:
            pass


async def interrupt(channel: Channel, command_id: str) -> None:
    """DELETE /command."""
    await channel.request("DELETE", "/command", query=[("id", command_id)])


async def try_to_interrupt(channel: Channel, command_id: str) -> None:
    """Best effort, for one who is leaving with an error of its own already."""
    with contextlib.suppress(CasuloError, TimeoutError):
        async with asyncio.timeout(_INTERRUPT_SECONDS):
            await interrupt(channel, command_id)
