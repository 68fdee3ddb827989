# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Files that a guest fills and that stay small."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from casulo.runtimes.microvm.wire import Dial, Wire

_CHUNK = 64 << 10
_PAUSE_SECONDS = 0.005
"""Between two chunks, so that a guest that floods its output does not keep the server from its work."""

log = structlog.get_logger(__name__)


class Capped:
    """A file that drops its oldest half whenever it outgrows its cap."""

    def __init__(self, path: Path, cap: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._cap = cap
        self._size = os.fstat(self._file).st_size

    def append(self, data: bytes) -> None:
        """Add to the end."""
        os.pwrite(self._file, data, self._size)
        self._size += len(data)
        if self._size > self._cap:
            self._halve()

    def _halve(self) -> None:
        kept = os.pread(self._file, self._cap // 2, self._size - self._cap // 2)
        kept = kept[kept.find(b"\n") + 1 :]
        os.pwrite(self._file, kept, 0)
        os.truncate(self._file, len(kept))
        self._size = len(kept)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


async def pump(dial: Dial, target: Capped, *, again: bool = False) -> None:
    """Copy until the other end closes, or with `again` until nobody answers; closes `target`."""
    try:
        await _copy(await dial(), target)
        while again:
            await _copy(await dial(), target)
    except OSError as error:
        log.info("microvm.output_ended", error=str(error))
    finally:
        target.close()


async def _copy(wire: Wire, target: Capped) -> None:
    try:
        while chunk := await wire.reader.read(_CHUNK):
            target.append(chunk)
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        wire.close()
