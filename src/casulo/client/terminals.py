# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Terminals: a shell behind a pseudo-terminal, to which several can look on and one writes.

The shell outlives the connection. One that breaks is taken up again at the byte where it broke.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from casulo.client import faults
from casulo.client.channel import Channel
from casulo.client.records import parse
from casulo.model.errors import Conflict, RuntimeFailure, TimedOut

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PATIENCE = 15.0
"""Seconds for which a lost connection is tried to be made again."""

_CONNECT_SECONDS = 10.0
_PAUSE = 0.2
_STDIN, _REPLAY = b"\x00", 3
_HEAD = 9
_TAKEN_OVER = 4001


@dataclass(frozen=True)
class TerminalStatus:
    """Whether the shell runs, and how many bytes it has written."""

    id: str
    running: bool
    output_offset: int

    @staticmethod
    def read(data: Any) -> TerminalStatus:
        """From the daemon's answer."""
        return TerminalStatus(str(data["session_id"]), bool(data["running"]), int(data["output_offset"]))


class AsyncTerminal:
    """One terminal. `connect`, then read `output` while writing; the shell starts with the first connection.

    As a context manager it is deleted, with what runs in it, on leaving.
    """

    def __init__(self, channel: Channel, terminal_id: str) -> None:
        self.id = terminal_id
        self.exit_code: int | None = None
        self.offset = 0
        self._channel = channel
        self._socket: ClientConnection | None = None
        self._viewer = False

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.delete()

    async def connect(self, *, since: int = 0, takeover: bool = False, view: bool = False) -> None:
        """Attach, with the output from byte `since` on. `view` only looks on, `takeover` ends the other."""
        self.offset, self._viewer = since, view
        await self._attach(takeover=takeover)

    async def output(self) -> AsyncGenerator[bytes, None]:
        """What is written, until the shell ends; `exit_code` is known then."""
        while self.exit_code is None:
            async with aclosing(self._frames()) as frames:
                async for data in frames:
                    yield data
            if self.exit_code is None:
                await self._attach_again()

    async def write(self, data: str | bytes) -> None:
        """Type."""
        await self._send(_STDIN + (data.encode() if isinstance(data, str) else data))

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window; programs are told."""
        await self._send(json.dumps({"type": "resize", "cols": columns, "rows": rows}))

    async def signal(self, name: str) -> None:
        """Send SIGINT, SIGTERM, SIGKILL, SIGQUIT or SIGHUP to what runs in front."""
        await self._send(json.dumps({"type": "signal", "signal": name}))

    async def status(self) -> TerminalStatus:
        """Whether the shell runs."""
        answer = await self._channel.request("GET", f"/pty/{self.id}")
        return parse(TerminalStatus.read, answer.json())

    async def disconnect(self) -> None:
        """Leave; the shell goes on."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def delete(self) -> None:
        """End the shell and all that runs in it."""
        await self.disconnect()
        await self._channel.request("DELETE", f"/pty/{self.id}")

    async def _attach(self, *, takeover: bool) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        options = {"since": str(self.offset), "takeover": "1" * takeover, "view": "1" * self._viewer}
        query = [(name, value) for name, value in options.items() if value]
        url, headers = await self._channel.address(f"/pty/{self.id}/ws", query)
        try:
            self._socket = await connect(
                url.replace("http", "ws", 1),
                additional_headers=headers,
                open_timeout=_CONNECT_SECONDS,
                compression=None,
                max_size=None,
                proxy=None,
            )
        except InvalidStatus as error:
            answer = error.response
            heads = {name.lower(): value for name, value in answer.headers.raw_items()}
            raise faults.from_answer(answer.status_code, heads, bytes(answer.body or b"")) from error
        except TimeoutError as error:
            raise TimedOut(f"terminal {self.id} does not answer", code=faults.REQUEST_TIMEOUT) from error
        except (OSError, InvalidHandshake) as error:
            raise faults.Unreachable(f"no connection to terminal {self.id}: {error}") from error

    async def _attach_again(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                await self._attach(takeover=not self._viewer)
                return
            except (faults.Unreachable, TimedOut):
                self._channel.forget()
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Output from the present connection, until it breaks or the shell ends."""
        from websockets.exceptions import ConnectionClosed

        socket = self._connected()
        try:
            async for frame in socket:
                if isinstance(frame, str):
                    self._told(parse(json.loads, frame))
                elif data := self._fresh(frame):
                    yield data
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == _TAKEN_OVER:
                raise Conflict(f"terminal {self.id} was taken over by another client") from error

    def _fresh(self, frame: bytes) -> bytes:
        """The output in a frame; what is replayed although it was seen is left out."""
        if frame[0] != _REPLAY:
            self.offset += len(frame) - 1
            return frame[1:]
        start, data = int.from_bytes(frame[1:_HEAD]), frame[_HEAD:]
        data = data[max(self.offset - start, 0) :]
        self.offset = max(self.offset, start + len(frame) - _HEAD)
        return data

    def _told(self, message: dict[str, Any]) -> None:
        if message.get("type") == "exit":
            self.exit_code = int(message.get("exit_code", 0))
        elif message.get("type") == "error":
            raise RuntimeFailure(str(message.get("error")), code=str(message.get("code")))

    async def _send(self, frame: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connected().send(frame)
        except ConnectionClosed as error:
            raise faults.Disconnected(f"terminal {self.id} is not connected any more") from error

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            raise Conflict(f"terminal {self.id} is not connected", hint="call connect() first")
        return self._socket


class AsyncTerminals:
    """The terminals of one sandbox."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def create(self, command: str | None = None, *, cwd: str | None = None) -> AsyncTerminal:
        """A terminal for a shell, or for `command`."""
        given = {"command": command, "cwd": cwd}
        body = {name: value for name, value in given.items() if value is not None}
        answer = await self._channel.request("POST", "/pty", content=body)
        return self.attach(parse(lambda data: str(data["session_id"]), answer.json()))

    def attach(self, terminal_id: str) -> AsyncTerminal:
        """A terminal that exists, by its id."""
        return AsyncTerminal(self._channel, terminal_id)
