# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The body of an upload: per file a part of metadata and a part of content, streamed from where it is.

The length is told beforehand whenever it can be known, so that a cut upload is not taken for a whole one.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

CHUNK = 1 << 20


@runtime_checkable
class Readable(Protocol):
    """A file opened for reading, in binary or text mode."""

    def read(self, size: int, /) -> bytes | str:
        """Up to `size` bytes or characters; nothing at the end."""


Source = str | bytes | bytearray | memoryview | Readable | Iterable[bytes] | AsyncIterable[bytes]


async def pieces(source: Source) -> AsyncIterator[bytes]:
    """The bytes of `source`, piece by piece."""
    async for piece in _chunks(_settled(source)):
        yield piece


class Upload:
    """A multipart body that can be read once."""

    def __init__(self, files: Sequence[tuple[Source, Mapping[str, Any]]]) -> None:
        self._boundary = secrets.token_hex(16)
        self._files = [(self._head(metadata), _settled(source)) for source, metadata in files]

    def __bool__(self) -> bool:
        return bool(self._files)

    def headers(self) -> dict[str, str]:
        """Content type, and the length if every source has one."""
        headers = {"Content-Type": f"multipart/form-data; boundary={self._boundary}"}
        length = self._length()
        if length is not None:
            headers["Content-Length"] = str(length)
        return headers

    async def body(self) -> AsyncIterator[bytes]:
        """Everything, piece by piece."""
        for head, source in self._files:
            yield head
            async for chunk in _chunks(source):
                yield chunk
            yield b"\r\n"
        yield self._tail()

    def _length(self) -> int | None:
        total = len(self._tail())
        for head, source in self._files:
            size = _size(source)
            if size is None:
                return None
            total += len(head) + size + 2
        return total

    def _head(self, metadata: Mapping[str, Any]) -> bytes:
        mark = f"--{self._boundary}\r\n"
        return (
            f"{mark}"
            'Content-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
            f"Content-Type: application/json\r\n\r\n{json.dumps(metadata)}\r\n"
            f"{mark}"
            'Content-Disposition: form-data; name="file"; filename="file"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()

    def _tail(self) -> bytes:
        return f"--{self._boundary}--\r\n".encode()


def _settled(source: Source) -> Source:
    """Text becomes bytes at once, so that its size in bytes is known."""
    return source.encode() if isinstance(source, str) else source


def _size(source: Source) -> int | None:
    """The number of bytes that `source` will give, or None when only reading can tell."""
    if isinstance(source, memoryview):
        return source.nbytes
    if isinstance(source, bytes | bytearray):
        return len(source)
    if isinstance(source, io.TextIOBase) or not isinstance(source, io.IOBase) or not source.seekable():
        return None
    here = source.tell()
    end = source.seek(0, os.SEEK_END)
    source.seek(here)
    return max(0, end - here)


async def _chunks(source: Source) -> AsyncIterator[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        for start in range(0, len(view), CHUNK):
            yield bytes(view[start : start + CHUNK])
    elif isinstance(source, str):
        raise AssertionError("text was turned into bytes before")
    elif isinstance(source, AsyncIterable):
        async for chunk in source:
            yield chunk
    elif isinstance(source, Readable):
        async for chunk in _read(source):
            yield chunk
    else:
        for chunk in source:
            yield chunk


async def _read(source: Readable) -> AsyncIterator[bytes]:
    """Reads in a thread: a slow disk or pipe must not stop the other sandboxes of this process."""
    while chunk := await asyncio.to_thread(source.read, CHUNK):
        yield chunk.encode() if isinstance(chunk, str) else chunk
