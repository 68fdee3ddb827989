# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Reading a tar archive front to back: ustar, GNU and pax, sparse files included.

The standard library's reader takes a damaged header for the end of the archive, and five times as
long. Here every byte before the end must make sense. Names stay bytes, as on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from casulo.images import sparse
from casulo.model.errors import Code, InvalidRequest

BLOCK = 512
_LONGEST_EXTENSION = 1 << 20
_XATTR = b"SCHILY.xattr."
_GLOBAL = (b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime")
"""What a global header may preset; the rest of it is comment."""


class Kind(Enum):
    """What an entry is."""

    FILE = "file"
    HARD_LINK = "hard link"
    SYMLINK = "symbolic link"
    DIRECTORY = "directory"
    FIFO = "pipe"
    DEVICE = "device"


_KINDS = {
    b"0": Kind.FILE, b"\0": Kind.FILE, b"7": Kind.FILE, b"S": Kind.FILE, b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK, b"3": Kind.DEVICE, b"4": Kind.DEVICE, b"5": Kind.DIRECTORY, b"6": Kind.FIFO,
}  # fmt: skip


@dataclass(slots=True)
class Entry:
    """One member. `size` counts its data in the archive; `holes` spreads that over a sparse file."""

    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    holes: sparse.Map | None = None


class Damaged(InvalidRequest):
    """The archive breaks the format's rules."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the archive is damaged: {why}", code=Code.IMAGE_INVALID)


class Reader:
    """Bytes of a stream by count, from pieces that `next_piece` hands out (an empty one at the end)."""

    def __init__(self, next_piece: Callable[[], bytes]) -> None:
        self._next = next_piece
        self._piece = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        end = self._at + count
        if end <= len(self._piece):
            found = self._piece[self._at : end]
            self._at = end
            return found
        return b"".join(self.parts(count))

    def parts(self, count: int) -> Iterator[memoryview]:
        """`count` bytes in pieces as they come, not copied."""
        while count:
            if self.at_end():
                raise Damaged("it ends in the middle of a member")
            part = memoryview(self._piece)[self._at : self._at + count]
            self._at += len(part)
            count -= len(part)
            yield part

    def skip(self, count: int) -> None:
        """Leave `count` bytes out."""
        for _ in self.parts(count):
            pass

    def at_end(self) -> bool:
        """Whether nothing follows."""
        if self._at == len(self._piece):
            self._piece, self._at = self._next(), 0
        return not self._piece

    def drain(self) -> None:
        """Read to the end, so that whoever counts and hashes sees everything."""
        while not self.at_end():
            self._at = len(self._piece)


@dataclass(slots=True)
class _Extensions:
    """What extended headers said about the next member."""

    records: dict[bytes, bytes]
    name: bytes = b""
    target: bytes = b""
    size: int = 0


class Archive:
    """Iterates over the members; `data` yields the current one's content, what is left is skipped."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._defaults: dict[bytes, bytes] = {}
        self._left = 0

    def __iter__(self) -> Iterator[Entry]:
        while (header := self._header()) is not None:
            extensions = _Extensions(self._defaults)
            while header[156] in b"xgXLK":
                self._extend(extensions, header)
                following = self._header()
                if following is None:
                    raise Damaged("it ends after an extended header")
                header = following
            entry = _entry(header, extensions)
            padding = -entry.size % BLOCK
            self._left = entry.size
            self._find_holes(entry, header, extensions.records)
            yield entry
            self._reader.skip(self._left + padding)
        self._reader.drain()

    def data(self) -> Iterator[memoryview]:
        """The content of the current member."""
        for part in self._reader.parts(self._left):
            self._left -= len(part)
            yield part

    def _take(self, count: int) -> bytes:
        if count > self._left:
            raise Damaged("a sparse member ends before its map")
        self._left -= count
        return self._reader.take(count)

    def _header(self) -> bytes | None:
        """The next header block; None at the end, which two empty blocks mark, or the stream's end."""
        if self._reader.at_end():
            return None
        block = self._reader.take(BLOCK)
        if any(block):
            _check_sum(block)
            return block
        if not self._reader.at_end() and any(self._reader.take(BLOCK)):
            raise Damaged("data after an empty block")
        return None

    def _extend(self, extensions: _Extensions, header: bytes) -> None:
        size = _number(header[124:136])
        extensions.size += size
        if extensions.size > _LONGEST_EXTENSION:
            raise Damaged(f"extended headers of {extensions.size} bytes for one member")
        body = self._reader.take(size)
        self._reader.skip(-size % BLOCK)
        flag = header[156:157]
        if flag == b"L":
            extensions.name = body.split(b"\0", 1)[0]
        elif flag == b"K":
            extensions.target = body.split(b"\0", 1)[0]
        elif flag == b"g":
            found = _records(body)
            self._defaults = {**self._defaults, **{key: found[key] for key in _GLOBAL if key in found}}
            extensions.records = {**self._defaults, **extensions.records}
        else:
            extensions.records = {**extensions.records, **_records(body)}

    def _find_holes(self, entry: Entry, header: bytes, records: dict[bytes, bytes]) -> None:
        if header[156:157] == b"S":
            entry.holes = sparse.of_header(header, self._reader.take, _number)
        elif records and entry.kind is Kind.FILE and (found := sparse.of_records(records, self._take)):
            entry.holes = found[0]
            entry.size -= found[1]
        if entry.holes and sum(length for _, length in entry.holes.regions) != entry.size:
            raise Damaged("a sparse member's map does not fit its data")


def _entry(header: bytes, extensions: _Extensions) -> Entry:
    flag = header[156:157]
    kind = _KINDS.get(flag)
    if kind is None:
        raise Damaged(f"a member of the unknown type {flag!r}")
    entry = Entry(
        name=extensions.name or _name(header),
        kind=kind,
        mode=_number(header[100:108]) & 0o7777,
        uid=_number(header[108:116]),
        gid=_number(header[116:124]),
        mtime_ns=_number(header[136:148], signed=True) * 1_000_000_000,
        size=_number(header[124:136]) if kind is Kind.FILE else 0,
        target=extensions.target or _text(header[157:257]),
    )
    if extensions.records:
        _apply(entry, extensions.records)
    if entry.kind is Kind.FILE and entry.name.endswith(b"/"):
        entry.kind = Kind.DIRECTORY  # how archives older than ustar write it
    if b"\0" in entry.name or b"\0" in entry.target:
        raise Damaged("a name with a NUL byte")
    return entry


def _apply(entry: Entry, records: dict[bytes, bytes]) -> None:
    for key, value in records.items():
        if key == b"path":
            entry.name = value
        elif key == b"linkpath":
            entry.target = value
        elif key == b"size" and entry.kind is Kind.FILE:
            entry.size = _decimal(key, value)
        elif key == b"uid":
            entry.uid = _decimal(key, value)
        elif key == b"gid":
            entry.gid = _decimal(key, value)
        elif key == b"mtime":
            entry.mtime_ns = _time(value)
        elif key.startswith(_XATTR):
            entry.xattrs[key[len(_XATTR) :]] = value
    entry.name = records.get(sparse.NAME, entry.name)


def _records(body: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, where LENGTH counts itself."""
    found: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    at = 0
    while at < len(body) and body[at]:  # some writers fill up with zeros
        digits = body[at : at + 20].split(b" ", 1)[0]
        length = int(digits) if digits.isdigit() else 0
        record = body[at : at + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) != length or not record.endswith(b"\n") or not equals or not key or b"\0" in key:
            raise Damaged("a wrong pax record")
        if key in sparse.PIECES:
            pieces.append(value)
        found[key] = value
        at += length
    if pieces:
        found[sparse.MAP] = b",".join(pieces)
    return found


def _name(header: bytes) -> bytes:
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return _text(header[345:500]) + b"/" + name
    return name


def _text(field_: bytes) -> bytes:
    return field_.split(b"\0", 1)[0]


def _number(text: bytes, *, signed: bool = False) -> int:
    """Octal digits, or GNU's base 256 for what does not fit."""
    if text[0] & 0x80:
        value = int.from_bytes(text, "big")
        bits = 8 * len(text)
        value = value - (1 << bits) if text[0] & 0x40 else value - (1 << (bits - 1))
    else:
        digits = text.strip(b"\0 ")
        try:
            value = int(digits, 8) if digits else 0
        except ValueError:
            raise Damaged(f"{text!r} is no octal number") from None
    if (value < 0 and not signed) or abs(value) >= 1 << 63:
        raise Damaged(f"the number {value} is out of range")
    return value


def _decimal(key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise Damaged(f"{text[:20]!r} is no {key.decode()}")
    return int(text)


def _time(text: bytes) -> int:
    sign, _, digits = text.rpartition(b"-")
    whole, _, fraction = digits.partition(b".")
    if (sign or len(whole) > 12) or not (whole + fraction).isdigit():
        raise Damaged(f"{text[:20]!r} is no time")
    nanoseconds = int(whole or b"0") * 1_000_000_000 + int((fraction + bytes(b"0" * 9))[:9])
    return -nanoseconds if text.startswith(b"-") else nanoseconds


def _check_sum(block: bytes) -> None:
    told = _number(block[148:156])
    if sum(block) - sum(block[148:156]) + 256 != told:
        raise Damaged("a header with a wrong checksum")
