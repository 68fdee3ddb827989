# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a person sees while something takes longer than a second. All of it goes to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO

from casulo.cli.printer import note, stderr_console

PATIENCE = 1.0
"""Seconds that pass without a word."""


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Say `what` is going on, with a spinner on a terminal, once it takes long."""
    told = asyncio.ensure_future(_tell(what))
    try:
        yield
    finally:
        told.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await told


async def _tell(what: str) -> None:
    await asyncio.sleep(PATIENCE)
    if not sys.stderr.isatty():
        note(f"{what} …")
        return
    with stderr_console().status(what):
        await asyncio.Event().wait()


class Transfer:
    """Counts bytes and, once the transfer takes long, shows a bar (or on no terminal a line at the end)."""

    def __init__(self, what: str, total: int | None) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=stderr_console(),
        )
        self._task = self._progress.add_task(what, total=total)
        self._shown = False

    def add(self, count: int) -> None:
        """`count` more bytes passed."""
        self._progress.update(self._task, advance=count)
        if not self._shown and time.monotonic() - self._began > PATIENCE:
            self._shown = True
            self._progress.start()

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self._shown:
            self._progress.stop()


@contextmanager
def transfer(what: str, total: int | None) -> Iterator[Transfer]:
    """A Transfer that is stopped at the end."""
    shown = Transfer(what, total)
    try:
        yield shown
    finally:
        shown.stop()


class Watched(io.RawIOBase):
    """A file opened for reading whose progress is shown."""

    def __init__(self, file: IO[bytes], shown: Transfer) -> None:
        self._file = file
        self._shown = shown

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes."""
        chunk = self._file.read(size)
        self._shown.add(len(chunk))
        return chunk

    def seekable(self) -> bool:
        """As the file is."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As in the file."""
        return self._file.tell()
