# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A halted machine's memory, taken from its monitor's process.

The monitor has the memory as one mapping of a file: all pages of the template or snapshot that it began
from, until the guest changed them. What was changed is little and is copied while the machine stands
still; the rest is in the file, which nobody writes to, and is copied after it went on.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from casulo.model.errors import RuntimeFailure
from casulo.runtimes.microvm import disks
from casulo.runtimes.microvm.vmm import Process

_PAGE = mmap.PAGESIZE
_ENTRY = 8
"""Bytes of one page in `pagemap`. The last of them holds the flags."""

_CHANGED = re.compile(b"[\x40-\x5f\x80-\x9f\xc0-\xdf]+")
"""Present (0x80) or swapped out (0x40), and no page of the file (0x20)."""

_MOST_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Mapping:
    """Where the memory is in the process."""

    start: int
    end: int


class Memory:
    """What was taken: the file underneath, and the changed pages. Close it."""

    def __init__(self, process: Process, size: int, scratch: Path) -> None:
        """Blocks while the changed pages are copied: to a file below `scratch` without a name, since a guest
        may have changed more than there is memory for."""
        self._stack = ExitStack()
        self._size = size
        self._scratch = scratch
        try:
            self._take(Path(f"/proc/{process.pid}"))
        except OSError as error:
            self.close()
            raise RuntimeFailure(f"the machine's memory cannot be read: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _take(self, place: Path) -> None:
        found = find((place / "maps").read_text(), self._size)
        base = os.open(place / "map_files" / f"{found.start:x}-{found.end:x}", os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, base)
        self._base = base
        self._runs = _changed(place, found)
        room = max(sum(last - first for first, last in self._runs), 1) * _PAGE
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            os.posix_fallocate(file.fileno(), 0, room)  # a full disk is told now, and not by a signal
            self._pages = mmap.mmap(file.fileno(), room)
        self._stack.callback(self._pages.close)
        with (place / "mem").open("rb", buffering=0) as memory, memoryview(self._pages) as pages:
            offset = 0
            for first, last in self._runs:
                offset += _read(memory.fileno(), found.start + first * _PAGE, last - first, pages[offset:])

    def write(self, target: Path) -> None:
        """The whole memory, sparse, into a file that is there or not."""
        disks.copy(Path(f"/proc/self/fd/{self._base}"), target)
        with target.open("r+b", buffering=0) as file, memoryview(self._pages) as pages:
            offset = 0
            for first, last in self._runs:
                length = (last - first) * _PAGE
                if os.pwrite(file.fileno(), pages[offset : offset + length], first * _PAGE) != length:
                    raise RuntimeFailure(f"{target.name} took only a part of the machine's memory")
                offset += length

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._stack.close()


def find(maps: str, size: int) -> Mapping:
    """The one mapping of a file that is as large as the machine's memory. Pure."""
    found = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if end - start == size and fields[2].strip("0") == "" and fields[4] != "0":
            found.append(Mapping(start, end))
    if len(found) != 1:
        raise RuntimeFailure(f"the monitor has {len(found)} mappings that could be the machine's memory")
    return found[0]


def runs(pagemap: bytes) -> list[tuple[int, int]]:
    """First and behind last page of each stretch of changed pages. Pure."""
    found = []
    most = _MOST_AT_ONCE // _PAGE
    for match in _CHANGED.finditer(pagemap[_ENTRY - 1 :: _ENTRY]):
        first, last = match.span()
        found += [(place, min(place + most, last)) for place in range(first, last, most)]
    return found


def _changed(place: Path, mapping: Mapping) -> list[tuple[int, int]]:
    with (place / "pagemap").open("rb", buffering=0) as file:
        length = (mapping.end - mapping.start) // _PAGE * _ENTRY
        content = os.pread(file.fileno(), length, mapping.start // _PAGE * _ENTRY)
    if len(content) != length:
        raise RuntimeFailure("the list of the machine's pages is cut off")
    return runs(content)


def _read(memory: int, place: int, pages: int, room: memoryview) -> int:
    length = pages * _PAGE
    if os.preadv(memory, [room[:length]], place) != length:
        raise RuntimeFailure("the machine's memory went away while it was read")
    return length
