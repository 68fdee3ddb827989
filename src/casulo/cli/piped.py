# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Our own stdin as the input of a remote command."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casulo.client.multipart import Source

_STDIN = 0
_CHUNK = 64 << 10


def piped_stdin() -> Source | None:
    """What is piped or redirected into us; None for a terminal, /dev/null, or no stdin at all."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return None
    if stat.S_ISREG(mode):
        return sys.stdin.buffer
    return _pipe() if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


async def _pipe() -> AsyncIterator[bytes]:
    """On the loop, not in a thread: a thread that waits for a silent pipe could not be ended."""
    reader = asyncio.StreamReader()
    with open(_STDIN, "rb", buffering=0, closefd=False) as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        try:
            while chunk := await reader.read(_CHUNK):
                yield chunk
        finally:
            transport.close()
            os.set_blocking(_STDIN, True)  # the pipe is shared with whoever started us
