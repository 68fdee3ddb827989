# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Files that a guest fills and that stay small."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

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


async def pump(source: Path, target: Capped) -> None:
    """Copy from a socket until its other end closes; closes `target`."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(source))
        try:
            while chunk := await reader.read(_CHUNK):
                target.append(chunk)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            writer.close()
    except OSError as error:
        log.warning("microvm.output_lost", socket=source.name, error=str(error))
    finally:
        target.close()
