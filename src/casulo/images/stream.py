# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From a blob to the archive inside it: unpacked, counted and hashed in a thread ahead of its reader.

Hashing and decompressing release the interpreter's lock, so they run beside the reader, on another
core where there is one. ISA-L unpacks gzip twice as fast as zlib, and that is where most time goes.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, cast

from isal import isal_zlib

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from casulo.model.errors import CasuloError, Code, InvalidRequest

PIECE = 1 << 20
_AHEAD = 8
_FEED = 64 << 10  # small, since a member's end inside it makes the rest be copied
_MEMORY = 256 << 20
_USTAR = slice(257, 262)
_IsalError = cast(type[Exception], isal_zlib.error)  # a class, which its types call an instance

_Decoder = Callable[[Iterator[bytes]], Iterator[bytes]]


class Stream:
    """Hands out pieces of the archive in `source`; digests and sizes stand when it has ended.

    `on_raw` is told the size of each piece of the blob as it is read. Close it, or a reader that
    stops early leaves the thread waiting.
    """

    def __init__(self, source: BinaryIO, on_raw: Callable[[int], None] = lambda _: None) -> None:
        self._source = source
        self._on_raw = on_raw
        self._raw = self._plain = hashlib.sha256()
        self.raw_size = self.plain_size = 0
        self._pieces: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="unpack-ahead", daemon=True)
        self._thread.start()

    @property
    def raw_digest(self) -> str:
        """Of the blob as it came."""
        return f"sha256:{self._raw.hexdigest()}"

    @property
    def plain_digest(self) -> str:
        """Of the archive: a layer's diff id."""
        return f"sha256:{self._plain.hexdigest()}"

    def next_piece(self) -> bytes:
        """The next bytes of the archive; empty at its end."""
        if self._ended:
            return b""
        found = self._pieces.get()
        if isinstance(found, BaseException):
            raise found
        self._ended = not found
        return found

    def close(self) -> None:
        """Stop reading ahead."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._pieces.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _work(self) -> None:
        try:
            decode, raw = _recognized(self._read())
            if decode is not _plain:  # else both digests are one
                self._plain = hashlib.sha256()
            for piece in _explained(decode(raw)):
                if self._plain is not self._raw:
                    self._plain.update(piece)
                self.plain_size += len(piece)
                self._pieces.put(piece)
                if self._closed:
                    return
            self._pieces.put(b"")
        except BaseException as error:  # carried to the reader's thread, whatever it is
            self._pieces.put(error)

    def _read(self) -> Iterator[bytes]:
        while piece := self._source.read(PIECE):
            self._raw.update(piece)
            self.raw_size += len(piece)
            self._on_raw(len(piece))
            yield piece


def _recognized(pieces: Iterator[bytes]) -> tuple[_Decoder, Iterator[bytes]]:
    """The form is told by its first bytes: what the manifest calls a layer is often not what it is."""
    first = next(pieces, b"")
    while 0 < len(first) < 512 and (more := next(pieces, b"")):
        first += more
    return _decoder(first), _chain(first, pieces)


def _explained(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The decoders' errors in one form; empty pieces left out."""
    try:
        yield from filter(None, pieces)
    except (_IsalError, lzma.LZMAError, zstd.ZstdError) as error:
        raise _damaged(str(error)) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damaged(str(error)) from error  # bz2 has no class of its own


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _decoder(first: bytes) -> _Decoder:
    if first[_USTAR] == b"ustar":
        return _plain
    if first.startswith(b"\x1f\x8b"):
        return _gunzipped
    if first.startswith(b"\x28\xb5\x2f\xfd") or (first[1:4] == b"\x2a\x4d\x18" and first[0] & 0xF0 == 0x50):
        return lambda pieces: _by_members(pieces, zstd.ZstdDecompressor)
    if first.startswith(b"\xfd7zXZ\0"):
        return lambda pieces: _by_members(pieces, lambda: lzma.LZMADecompressor(memlimit=_MEMORY))
    if first.startswith(b"BZh"):
        return lambda pieces: _by_members(pieces, bz2.BZ2Decompressor)
    return _plain


def _plain(pieces: Iterator[bytes]) -> Iterator[bytes]:
    return pieces


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """All members one after the other, with or without padding of zeros."""
    inflate = isal_zlib.decompressobj(31)
    for feed in _small(pieces):
        rest = feed
        while rest:
            if inflate.eof:
                rest = rest.lstrip(b"\0")
                if not rest:
                    break
                inflate = isal_zlib.decompressobj(31)
            yield inflate.decompress(rest, PIECE)
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    while not inflate.eof and (held_back := inflate.decompress(b"", PIECE)):
        yield held_back
    if not inflate.eof:
        raise _damaged("it is cut off")


class _Decompressor(Protocol):
    """What bz2, lzma and zstd have in common: input is taken once, output comes in portions."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def _by_members(pieces: Iterator[bytes], make: Callable[[], _Decompressor]) -> Iterator[bytes]:
    unpack = make()
    for feed in _small(pieces):
        rest = feed
        while rest or not (unpack.eof or unpack.needs_input):
            if unpack.eof:
                unpack = make()
            yield unpack.decompress(rest, PIECE)
            rest = unpack.unused_data if unpack.eof else b""
    if not unpack.eof:
        raise _damaged("it is cut off")


def _small(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _FEED):
            yield piece[at : at + _FEED]


def _damaged(why: str) -> CasuloError:
    return InvalidRequest(f"the archive is damaged: it does not unpack: {why}", code=Code.IMAGE_INVALID)
