# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A loopback TCP port whose connections end at a unix socket, byte for byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

_CHUNK = 256 * 1024


class Forward:
    """One listening port. Made with `open`."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        """The loopback port that is listened on."""
        return int(self._server.sockets[0].getsockname()[1])

    @classmethod
    async def open(cls, target: Path, port: int | None) -> Forward:
        """Forward `port`, or any free one when it is None or taken, to the socket at `target`."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _relay(target, reader, writer)

        try:
            return cls(await asyncio.start_server(serve, "127.0.0.1", port or 0, limit=_CHUNK))
        except OSError:
            if not port:
                raise
            return cls(await asyncio.start_server(serve, "127.0.0.1", 0, limit=_CHUNK))

    async def close(self) -> None:
        """Accept no more; connections under way end with the sandbox."""
        self._server.close()


async def _relay(target: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_unix_connection(target, limit=_CHUNK)
    except OSError:
        # Nobody listens: closing without a byte is what a refused connection looks like from here.
        writer.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, inner_writer))
            both.create_task(_copy(inner_reader, writer))
    except* OSError:
        # A connection broken on one side must not look like a clean end on the other.
        inner_writer.transport.abort()
        writer.transport.abort()
    finally:
        inner_writer.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until the end, then pass the end on."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
