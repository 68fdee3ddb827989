# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sparse members of tar archives: which parts of a file its data is, in the four forms there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from casulo.model.errors import Code, InvalidRequest

BLOCK = 512
MAP, SIZE, REAL_SIZE, NAME = b"GNU.sparse.map", b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.name"
_MAJOR, _MINOR, _COUNT = b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.numblocks"
PIECES = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
"""Keys of pax form 0.0, repeated once for each region; collected into MAP while records are read."""

_MOST_REGIONS = 1 << 20
Take = Callable[[int], bytes]


@dataclass(frozen=True)
class Map:
    """A file of `size` bytes that has data at `regions` (offset, length) and holes elsewhere."""

    size: int
    regions: tuple[tuple[int, int], ...]


def of_header(header: bytes, take: Take, number: Callable[[bytes], int]) -> Map:
    """The form of type flag S: four regions in the header, more in the blocks behind it."""
    fields = header[386:482]
    more = header[482]
    while more:
        block = take(BLOCK)
        fields += block[:504]
        more = block[504]
        if len(fields) > 24 * _MOST_REGIONS:
            raise _damaged("too many regions")
    pairs = (fields[at : at + 24] for at in range(0, len(fields), 24))
    regions = [(number(pair[:12]), number(pair[12:])) for pair in pairs if pair[0]]
    return _checked(number(header[483:495]), regions)


def of_records(records: Mapping[bytes, bytes], take: Take) -> tuple[Map, int] | None:
    """The three pax forms: the map and the bytes of data that it took; None when it is not sparse."""
    if records.get(_MAJOR) == b"1" and records.get(_MINOR) == b"0":
        regions, used = _leading(take)
        return _checked(_number(records.get(REAL_SIZE, b"")), regions), used
    if MAP not in records and _COUNT not in records:
        return None
    numbers = [_number(word) for word in records.get(MAP, b"").split(b",") if word]
    if len(numbers) % 2:
        raise _damaged("a region without a length")
    size = _number(records.get(SIZE) or records.get(REAL_SIZE, b""))
    return _checked(size, list(zip(numbers[::2], numbers[1::2], strict=True))), 0


def _leading(take: Take) -> tuple[list[tuple[int, int]], int]:
    """Form 1.0: lines of decimal numbers in front of the data, filled up to a whole block."""
    text, used = b"", 0
    wanted: int | None = None
    while wanted is None or text.count(b"\n") < wanted:
        text += take(BLOCK)
        used += BLOCK
        if wanted is None and b"\n" in text:
            wanted = 1 + 2 * _number(text.split(b"\n", 1)[0])
        if used > 64 * _MOST_REGIONS or (wanted or 0) > 2 * _MOST_REGIONS:
            raise _damaged("too many regions")
    numbers = [_number(line) for line in text.split(b"\n")[1:wanted]]
    return list(zip(numbers[::2], numbers[1::2], strict=True)), used


def _checked(size: int, regions: list[tuple[int, int]]) -> Map:
    end = 0
    for offset, length in regions:
        if offset < end or length < 0 or offset + length > size:
            raise _damaged("regions that overlap or exceed the file")
        end = offset + length
    return Map(size, tuple(region for region in regions if region[1]))


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise _damaged(f"{text[:20]!r} is no number")
    return int(text)


def _damaged(why: str) -> InvalidRequest:
    return InvalidRequest(f"the archive is damaged: a sparse member has {why}", code=Code.IMAGE_INVALID)
