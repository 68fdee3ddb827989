# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Bad networks for the client: a server that answers by script, and a line that breaks on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[str]:
    """A server that gives each connection to `handler`, and ends when all are through. Yields `host:port`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left: that is what these servers are for
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())
        await asyncio.wait_for(asyncio.gather(*tasks), 5)


@asynccontextmanager
async def scripted(answers: Sequence[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives one answer per request and then closes; an empty answer hangs up without a word.

    Yields its URL and the list of request heads that it got.
    """
    heads: list[bytes] = []
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(left.pop(0))
        await writer.drain()

    async with serving(answer) as address:
        yield f"http://{address}", heads


class Line:
    """A TCP relay to `target` that can be cut: when `cut_after` bytes came back, or by `cut`."""

    def __init__(self, target: tuple[str, int], cut_after: int | None = None) -> None:
        self._target = target
        self.cut_after = cut_after
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields its `host:port`."""
        async with serving(self._relay) as address:
            yield address
            self.cut()

    def cut(self) -> None:
        """Reset everything that passes now. New connections are served again."""
        self.cut_after = None
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            back, forth = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, forth}
        await asyncio.gather(self._copy(reader, forth), self._copy_back(back, writer), return_exceptions=True)
        forth.close()
        await asyncio.gather(forth.wait_closed(), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(4096):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(4096):
            if self.cut_after is not None and len(chunk) >= self.cut_after:
                writer.write(chunk[: self.cut_after - 1])
                self.cut()
                return
            if self.cut_after is not None:
                self.cut_after -= len(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.close()
