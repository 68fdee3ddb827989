# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Layers in folders, compared without mounting any of them. Blocking."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from casulo.model.snapshot import Change
from casulo.runtimes import branches
from casulo.runtimes.branches import CHUNK, Entry, Stack

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def compare(common: Sequence[Path], old: Sequence[Path], new: Sequence[Path]) -> Iterator[Change]:
    """From `old` to `new`, each on top of `common`, by path."""
    below, before, after = (Stack(map(_walk, layers)) for layers in (common, old, new))
    return branches.compare(below, before, after)


@dataclass(frozen=True)
class _File:
    """Links are never followed."""

    path: Path

    def target(self) -> bytes:
        return os.readlink(os.fsencode(self.path))

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            place = 0
            while (place := _next_data(file.fileno(), place)) >= 0:
                yield place, os.pread(file.fileno(), CHUNK, place)
                place += CHUNK


def _next_data(file: int, place: int) -> int:
    """Offset of the next chunk with something in it; -1 when there is nothing but a hole."""
    try:
        found = os.lseek(file, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        raise
    return max(place, found - found % CHUNK)


def _walk(layer: Path) -> Iterator[tuple[str, Entry]]:
    """Each directory before what is in it."""
    left = [(layer, "")]
    while left:
        folder, prefix = left.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name, info = prefix + entry.name, entry.stat(follow_symlinks=False)
                yield name, _entry(Path(entry.path), info)
                if stat.S_ISDIR(info.st_mode):
                    left.append((Path(entry.path), f"{name}/"))


def _entry(path: Path, info: os.stat_result) -> Entry:
    if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
        return Entry(removed=True)
    opaque = stat.S_ISDIR(info.st_mode) and _is_opaque(path)
    return Entry(
        info.st_mode, (info.st_uid, info.st_gid), info.st_rdev, info.st_size, opaque, content=_File(path)
    )


def _is_opaque(path: Path) -> bool:
    for mark in _OPAQUE:
        try:
            if os.getxattr(path, mark, follow_symlinks=False) == b"y":
                return True
        except OSError:  # it has none, or the file system knows no such marks
            continue
    return False
