# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Reading the file system of a machine's disk without mounting it. Blocking.

Its kernel wrote it, and whoever has root in the machine may have written anything: so this host's kernel
is kept from it. Everything read here is checked, and a disk that is no good is a RuntimeFailure.
Only what mke2fs makes for us is understood: extents, no journal, no encryption.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from casulo.model.errors import RuntimeFailure
from casulo.runtimes.branches import CHUNK, Entry

_MAGIC, _EXTENTS_MAGIC, _XATTR_MAGIC = 0xEF53, 0xF30A, 0xEA020000
_ROOT = 2
_WIDE = 0x80  # 64-bit block numbers
_KNOWN = 0x2 | 0x40 | _WIDE | 0x200 | 0x2000  # types in directories, extents, flexible groups, checksum seeds
_EXTENTS_FLAG = 0x80000
_INLINE_FLAG = 0x10000000
_DEEPEST = 5
_LONGEST_LINK = 4096
_LARGEST_FOLDER = 256 << 20
_TRUSTED = 4
_OPAQUE = b"overlay.opaque"
_MOST_NAMES = 1 << 20
"""In one directory: a name takes some ten times its bytes of our memory."""

_READINGS = 4
"""How often a disk may be read over, by its size: whoever lets many files share blocks shall not keep us
for ever."""


@dataclass(frozen=True)
class Inode:
    """One file, as far as it matters here. `runs` are (first block, count, place on the disk)."""

    number: int
    mode: int
    owner: tuple[int, int]
    size: int
    flags: int
    body: bytes = field(repr=False)
    tail: bytes = field(repr=False)
    attributes: int = 0

    @property
    def device(self) -> int:
        """What a device file stands for; the kernel writes it in one of two ways."""
        return int.from_bytes(self.body[0:4], "little") or int.from_bytes(self.body[4:8], "little")


class Disk:
    """An open disk. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._left = _READINGS * max(os.fstat(self._file.fileno()).st_size, 1 << 20)
        try:
            self._understand(self._at(1024, 1024))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Disk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _understand(self, head: bytes) -> None:
        magic, incompatible = struct.unpack_from("<H", head, 0x38)[0], struct.unpack_from("<I", head, 0x60)[0]
        if magic != _MAGIC or incompatible & ~_KNOWN:
            raise _bad("it is no ext4 file system that we made")
        shift, self._inodes = struct.unpack_from("<I", head, 0x18)[0], struct.unpack_from("<I", head, 0x28)[0]
        self._inode_bytes = struct.unpack_from("<H", head, 0x58)[0]
        wide = struct.unpack_from("<H", head, 0xFE)[0] if incompatible & _WIDE else 32
        if shift > 6 or not self._inodes or not 128 <= self._inode_bytes <= 4096 or wide not in (32, 64):
            raise _bad("its sizes are nonsense")
        self._block, self._group_bytes = 1024 << shift, wide
        self._groups = (struct.unpack_from("<I", head, 0x14)[0] + 1) * self._block

    def _at(self, place: int, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise _bad("its files are larger than any disk")
        try:
            found = os.pread(self._file.fileno(), size, place)
        except (OSError, OverflowError) as error:
            raise _bad(f"block at {place} cannot be read") from error
        if len(found) != size:
            raise _bad(f"it ends before {place + size}")
        return found

    def inode(self, number: int) -> Inode:
        """The file with this number."""
        if number < 1:
            raise _bad(f"there is no file number {number}")
        group, index = divmod(number - 1, self._inodes)
        about = self._at(self._groups + group * self._group_bytes, self._group_bytes)
        table = struct.unpack_from("<I", about, 8)[0]
        if self._group_bytes == 64:
            table |= struct.unpack_from("<I", about, 0x28)[0] << 32
        raw = self._at(table * self._block + index * self._inode_bytes, self._inode_bytes)
        mode, uid, size = struct.unpack_from("<HHI", raw, 0)
        gid, high_uid, high_gid = (struct.unpack_from("<H", raw, at)[0] for at in (0x18, 0x78, 0x7A))
        size |= struct.unpack_from("<I", raw, 0x6C)[0] << 32
        attributes = struct.unpack_from("<I", raw, 0x68)[0] | struct.unpack_from("<H", raw, 0x76)[0] << 32
        owner = (uid | high_uid << 16, gid | high_gid << 16)
        flags = struct.unpack_from("<I", raw, 0x20)[0]
        return Inode(number, mode, owner, size, flags, raw[0x28:0x64], raw[128:], attributes)

    def runs(self, inode: Inode) -> Iterator[tuple[int, int, int]]:
        """(first block in the file, blocks, first block on the disk) of what was written, in order."""
        if inode.flags & _INLINE_FLAG or not inode.flags & _EXTENTS_FLAG:
            raise _bad(f"file {inode.number} is kept in a way that we do not use")
        yield from self._tree(inode.body, _DEEPEST)

    def _tree(self, node: bytes, deepest: int) -> Iterator[tuple[int, int, int]]:
        magic, count, _, depth = struct.unpack_from("<HHHH", node, 0)
        if magic != _EXTENTS_MAGIC or 12 + 12 * count > len(node) or depth > deepest:
            raise _bad("a list of blocks is nonsense")
        for at in range(12, 12 + 12 * count, 12):
            if depth == 0:
                first, length, high, low = struct.unpack_from("<IHHI", node, at)
                if length <= 32768:  # else it was set aside and never written
                    yield first, length, low | high << 32
            else:
                _, low, high = struct.unpack_from("<IIH", node, at)
                yield from self._tree(self._at((low | high << 32) * self._block, self._block), depth - 1)

    def chunks(self, inode: Inode) -> Iterator[tuple[int, bytes]]:
        """Aligned pieces of what was written, with their offsets. A piece may be told in parts as zeros."""
        waiting, place = bytearray(), -1
        for first, count, where in self.runs(inode):
            for done in range(count):
                offset = (first + done) * self._block
                if offset >= inode.size:
                    break
                begin = offset - offset % CHUNK
                if begin < place:
                    raise _bad(f"the blocks of file {inode.number} are out of order")
                if begin != place:
                    if place >= 0:
                        yield place, bytes(waiting)
                    waiting, place = bytearray(min(CHUNK, inode.size - begin)), begin
                part = self._at((where + done) * self._block, self._block)[: inode.size - offset]
                waiting[offset - begin : offset - begin + len(part)] = part
        if place >= 0:
            yield place, bytes(waiting)

    def target(self, inode: Inode) -> bytes:
        """Where a symbolic link points."""
        if inode.size > _LONGEST_LINK:
            raise _bad(f"link {inode.number} is too long")
        if inode.size < 60 and not inode.flags & _EXTENTS_FLAG:
            return inode.body[: inode.size]
        return b"".join(chunk for _, chunk in self.chunks(inode))

    def names(self, inode: Inode) -> Mapping[bytes, int]:
        """What is in a directory, without itself and its parent."""
        if not stat.S_ISDIR(inode.mode) or inode.size > _LARGEST_FOLDER:
            raise _bad(f"file {inode.number} is no directory that can be read")
        found: dict[bytes, int] = {}
        for _, count, where in self.runs(inode):
            for block in range(where, where + count):
                self._take_names(self._at(block * self._block, self._block), found)
                if len(found) > _MOST_NAMES:
                    raise _bad(f"directory {inode.number} has more than {_MOST_NAMES} names")
        return {name: number for name, number in found.items() if name not in (b".", b"..")}

    def _take_names(self, block: bytes, found: dict[bytes, int]) -> None:
        at = 0
        while at + 8 <= len(block):
            number, length, size = struct.unpack_from("<IHB", block, at)
            if length < 8 or length % 4 or at + length > len(block) or size > length - 8:
                raise _bad("a directory is nonsense")
            name = block[at + 8 : at + 8 + size]
            if number and name:
                if b"/" in name or b"\0" in name:
                    raise _bad("a name has a slash in it")
                found[name] = number
            at += length

    def is_opaque(self, inode: Inode) -> bool:
        """Whether overlayfs marked the directory as hiding what is below it."""
        if len(inode.tail) >= 4:
            extra = struct.unpack_from("<H", inode.tail, 0)[0]
            inside = inode.tail[extra:]
            if inside[:4] == _XATTR_MAGIC.to_bytes(4, "little") and _marked(inside[4:], inside[4:]):
                return True
        if not inode.attributes:
            return False
        block = self._at(inode.attributes * self._block, self._block)
        return block[:4] == _XATTR_MAGIC.to_bytes(4, "little") and _marked(block[32:], block)


def _marked(entries: bytes, values: bytes) -> bool:
    at = 0
    while at + 16 <= len(entries) and entries[at : at + 4] != b"\0\0\0\0":
        length, index, where, _, size = struct.unpack_from("<BBHII", entries, at)
        name = entries[at + 16 : at + 16 + length]
        if index == _TRUSTED and name == _OPAQUE:
            return values[where : where + size] == b"y"
        at += (16 + length + 3) // 4 * 4
    return False


@dataclass(frozen=True)
class _File:
    """Content on a disk that has to stay open."""

    disk: Disk
    inode: Inode

    def target(self) -> bytes:
        return self.disk.target(self.inode)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        return self.disk.chunks(self.inode)


def layer(disk: Disk, top: str) -> Iterator[tuple[str, Entry]]:
    """What a directory of the disk holds, each directory before what is in it."""
    number = disk.names(disk.inode(_ROOT)).get(os.fsencode(top))
    if number is None:
        raise _bad(f"it has no directory {top!r}")
    left, seen = [(number, "")], {_ROOT, number}
    while left:
        folder, prefix = left.pop()
        for name, child in disk.names(disk.inode(folder)).items():
            path, inode = prefix + os.fsdecode(name), disk.inode(child)
            yield path, _entry(disk, inode)
            if stat.S_ISDIR(inode.mode):
                if child in seen:
                    raise _bad("a directory is in two places")
                seen.add(child)
                left.append((child, f"{path}/"))


class Below:
    """The disk of an image, looked up path by path."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names: dict[int, Mapping[bytes, int]] = {}

    def says(self, name: str) -> Entry | bool:
        """What is there, False for nothing."""
        number = _ROOT
        for part in name.split("/"):
            inode = self._disk.inode(number)
            if not stat.S_ISDIR(inode.mode):
                return False
            if number not in self._names:
                self._names[number] = self._disk.names(inode)
            found = self._names[number].get(os.fsencode(part))
            if found is None:
                return False
            number = found
        return _entry(self._disk, self._disk.inode(number))


def _entry(disk: Disk, inode: Inode) -> Entry:
    if stat.S_ISCHR(inode.mode) and inode.device == 0:
        return Entry(removed=True)
    opaque = stat.S_ISDIR(inode.mode) and disk.is_opaque(inode)
    is_device = stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode)
    device = inode.device if is_device else 0
    return Entry(inode.mode, inode.owner, device, inode.size, opaque, content=_File(disk, inode))


def _bad(why: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"the disk of the machine cannot be read: {why}",
        hint="create a sandbox from the snapshot, and look at its files there",
    )
