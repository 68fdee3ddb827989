# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One open connection to a machine, whatever it goes through."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

LONGEST_LINE = 256 << 10


@dataclass(frozen=True)
class Wire:
    """What comes from there, and how to send and to hang up."""

    reader: asyncio.StreamReader
    write: Callable[[bytes], None]
    close: Callable[[], None]


Dial = Callable[[], Awaitable[Wire]]
"""Opens a connection. OSError when there is nobody who could answer any more."""


async def unix(path: Path | str) -> Wire:
    """To a listening socket."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=LONGEST_LINE)
    return Wire(reader, writer.write, writer.close)


async def pipe(path: Path) -> Wire:
    """To the reading end of a named pipe."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(LONGEST_LINE, loop)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return Wire(reader, _no_writing, transport.close)


def _no_writing(_: bytes) -> None:
    raise OSError("nothing can be written to a console")
