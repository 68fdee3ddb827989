# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Following one command over the network until its end is known.

request ──► events ──► Exit                 the usual way
              │ connection breaks
              ▼
     status + logs from the last byte, repeated ──► Exit
              │ daemon does not answer, or the log lost bytes
              ▼
         StreamBroken                       never a made-up success
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from casulo.client.channel import Channel
from casulo.client.faults import BAD_ANSWER, Disconnected, StreamBroken
from casulo.client.multipart import Source
from casulo.client.records import parse
from casulo.client.results import CommandStatus, Logs
from casulo.client.stream import FRAMING_HEADER, RAW, Assembly, Event, Exit, Frames, Output, Started
from casulo.client.supply import Supply, try_to_interrupt
from casulo.client.transport import Incoming
from casulo.model.errors import CasuloError, RuntimeFailure, TimedOut, Unavailable

CURSOR_HEADER = "execd-commands-tail-cursor"
PATIENCE = 15.0
"""Seconds for which a daemon may stay silent before a broken stream is given up."""

_FIRST_POLL = 0.02
_SLOWEST_POLL = 0.5


class Follower:
    """One run of one command. `merged` says that part of the output came from the log."""

    def __init__(
        self,
        channel: Channel,
        path: str,
        body: dict[str, Any],
        *,
        stdin: Source | None = None,
        replayable: bool = True,
    ) -> None:
        self._channel = channel
        self._path = path
        self._body = body
        self._supply = Supply(channel, stdin)
        self._replayable = replayable
        self._assembly = Assembly()
        self._began = 0.0
        self.merged = False

    @property
    def command_id(self) -> str:
        """The daemon's id of the run; empty before the first event."""
        return self._assembly.command_id

    async def events(self) -> AsyncGenerator[Event, None]:
        """Started, all output, then the Exit. Leaving early interrupts the command."""
        given_up, self._began = True, time.monotonic()
        try:
            for source in (self._live, self._replay):
                async with contextlib.aclosing(source()) as items:
                    async for item in items:
                        if isinstance(item, Started):
                            self._supply.start(item.command_id)
                        yield item
            given_up = False
        except CasuloError:
            given_up = False
            raise
        finally:
            await self._supply.stop()
            if given_up:
                await self._abandon()
        assert self._assembly.exit is not None
        self._supply.check(self._assembly.exit)
        yield self._timed(self._assembly.exit)

    async def _live(self) -> AsyncGenerator[Started | Output, None]:
        """The stream as it arrives. That it broke is no error yet: the log has the rest."""
        frames = Frames()
        with contextlib.suppress(Disconnected):
            async with self._channel.stream(
                "POST", self._path, content=self._body, headers={FRAMING_HEADER: RAW}
            ) as incoming:
                _expect_events(incoming)
                async for chunk in incoming.chunks:
                    for event in frames.feed(chunk):
                        if item := self._assembly.accept(event):
                            yield item
        for event in frames.end():
            if item := self._assembly.accept(event):
                yield item

    async def _replay(self) -> AsyncGenerator[Output, None]:
        """The rest of the output from the command's log, until its status says that it ended."""
        if self._assembly.exit is not None:
            return
        if not self.command_id or not self._replayable:
            raise self._broken("the connection broke and this run cannot be looked up again")
        pause, heard = _FIRST_POLL, time.monotonic()
        while self._assembly.exit is None:
            try:
                status, logs = await self._look_up()
            except (Unavailable, TimedOut) as error:
                if time.monotonic() - heard > PATIENCE:
                    raise self._broken(f"the daemon does not answer any more: {error}") from error
            except CasuloError as error:
                raise self._broken(f"the rest of the output cannot be read: {error}") from error
            else:
                heard = time.monotonic()
                if output := self._from_log(logs):
                    yield output
                if not status.running:
                    self._assembly.exit = status.exit()
                    return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)

    async def _look_up(self) -> tuple[CommandStatus, Logs]:
        """The status first: once it says ended, the log that is read after it is complete."""
        status = await read_status(self._channel, self.command_id)
        return status, await read_logs(self._channel, self.command_id, self._assembly.ledger.resume)

    def _from_log(self, logs: Logs) -> Output | None:
        ledger, start = self._assembly.ledger, logs.cursor - len(logs.data)
        if start > ledger.resume:
            raise self._broken(f"the log begins only at byte {start}; what was before is lost")
        fresh = ledger.unseen(start, logs.data)
        self.merged = self.merged or bool(fresh)
        return Output("stdout", fresh) if fresh else None

    def _timed(self, end: Exit) -> Exit:
        """Failures come without their duration; ours includes the way there and back."""
        if end.duration_ms or not end.reason:
            return end
        return replace(end, duration_ms=round((time.monotonic() - self._began) * 1000))

    async def _abandon(self) -> None:
        """Best effort: the caller is already leaving, with an error of its own or cancelled."""
        if self.command_id:
            await try_to_interrupt(self._channel, self.command_id)

    def _broken(self, message: str) -> StreamBroken:
        return StreamBroken(
            f"{message}; how the command ended is not known",
            command_id=self.command_id,
            offset=self._assembly.ledger.resume,
            hint="read what is left with commands.status() and commands.logs()",
        )


async def read_status(channel: Channel, command_id: str) -> CommandStatus:
    """GET /command/status/{id}."""
    answer = await channel.request("GET", f"/command/status/{command_id}")
    return parse(CommandStatus.read, answer.json())


async def read_logs(channel: Channel, command_id: str, cursor: int) -> Logs:
    """GET /command/{id}/logs from byte `cursor` on."""
    answer = await channel.request(
        "GET", f"/command/{command_id}/logs", query=[("cursor", str(cursor))] if cursor else []
    )
    told = answer.headers.get(CURSOR_HEADER, "")
    return Logs(answer.body, int(told) if told.isdigit() else cursor + len(answer.body))


def _expect_events(incoming: Incoming) -> None:
    kind = incoming.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise RuntimeFailure(
            f"the daemon answered a command with {kind or 'no content type'} instead of events",
            code=BAD_ANSWER,
        )
