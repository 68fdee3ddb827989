# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What two stacks of layers show differently, without mounting any of them. Blocking.

A layer is what overlayfs left of a sandbox: files, a device 0/0 for each name that was removed, and a
mark on each directory that hides what is below it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from casulo.model.errors import RuntimeFailure
from casulo.model.snapshot import Change

_CHUNK = 1 << 20
_MOST_ENTRIES = 1_000_000
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


@dataclass(frozen=True)
class _Entry:
    """What a layer says of one path: `path` None says that it was removed."""

    path: Path | None
    info: os.stat_result
    opaque: bool = False


class Stack:
    """The topmost word on each path that any of the layers has something to say about."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self.entries: dict[str, _Entry] = {}
        self._below: dict[str, set[str]] = {}
        for layer in layers:
            for name, entry in _walk(layer):
                self._lay(name, entry)

    def _lay(self, name: str, entry: _Entry) -> None:
        replaced = self.entries.get(name)
        hides = entry.path is None or entry.opaque or not stat.S_ISDIR(entry.info.st_mode)
        if replaced and hides and replaced.path and stat.S_ISDIR(replaced.info.st_mode):
            self._drop_below(name)
        if replaced and replaced.opaque and entry.path and stat.S_ISDIR(entry.info.st_mode):
            entry = _Entry(entry.path, entry.info, True)
        self.entries[name] = entry
        self._below.setdefault(name.rpartition("/")[0], set()).add(name)
        if len(self.entries) > _MOST_ENTRIES:
            raise RuntimeFailure(
                f"the snapshots have more than {_MOST_ENTRIES} files, which are too many to compare",
                hint="create a sandbox from each, and compare what matters",
            )

    def _drop_below(self, name: str) -> None:
        left = [name]
        while left:
            names = self._below.pop(left.pop(), set())
            for each in names:
                self.entries.pop(each, None)
            left += names

    def says(self, name: str) -> _Entry | bool:
        """The entry of a path; else whether what lies below the stack still shows there."""
        found = self.entries.get(name)
        if found is not None:
            return found
        while "/" in name:
            name = name.rpartition("/")[0]
            above = self.entries.get(name)
            if above is not None:
                hidden = above.path is None or above.opaque or not stat.S_ISDIR(above.info.st_mode)
                return not hidden
        return True


def compare(common: Sequence[Path], old: Sequence[Path], new: Sequence[Path]) -> Iterator[Change]:
    """From `old` to `new`, each on top of `common`, by path."""
    below, before, after = Stack(common), Stack(old), Stack(new)
    for name in sorted(before.entries.keys() | after.entries.keys()):
        kind = _kind(below, before.says(name), after.says(name), name)
        if kind:
            yield Change(f"/{name}", kind)


def _kind(below: Stack, old: _Entry | bool, new: _Entry | bool, name: str) -> str:
    """`added`, `removed`, `changed`, or nothing."""
    was, now = _shown(below, old, name), _shown(below, new, name)
    if isinstance(was, _Entry) and isinstance(now, _Entry):
        return "" if _same(was, now) else "changed"
    if was is False or now is False:
        return "" if was is now else ("added" if was is False else "removed")
    # One of them shows what lies below all layers, of which nothing is known here but that it may be there.
    seen = was if isinstance(was, _Entry) else now
    return "" if isinstance(seen, bool) or stat.S_ISDIR(seen.info.st_mode) else "changed"


def _shown(below: Stack, said: _Entry | bool, name: str) -> _Entry | bool:
    """What is there: an entry, False for nothing, True for whatever the image has."""
    if said is True:
        said = below.says(name)
    if isinstance(said, _Entry) and said.path is None:
        return False
    return said


def _same(one: _Entry, other: _Entry) -> bool:
    facts = [(e.info.st_mode, e.info.st_uid, e.info.st_gid, e.info.st_rdev) for e in (one, other)]
    if facts[0] != facts[1]:
        return False
    assert one.path is not None and other.path is not None
    if stat.S_ISLNK(one.info.st_mode):
        return os.readlink(one.path) == os.readlink(other.path)
    if not stat.S_ISREG(one.info.st_mode):
        return True
    return one.info.st_size == other.info.st_size and _same_content(one.path, other.path)


def _same_content(one: Path, other: Path) -> bool:
    if one == other:
        return True
    with _opened(one) as first, _opened(other) as second:
        while True:
            chunk = first.read(_CHUNK)
            if chunk != second.read(_CHUNK):
                return False
            if not chunk:
                return True


def _opened(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb")


def _walk(layer: Path) -> Iterator[tuple[str, _Entry]]:
    """Each directory before what is in it. Links are never followed."""
    left = [(layer, "")]
    while left:
        folder, prefix = left.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name, info = prefix + entry.name, entry.stat(follow_symlinks=False)
                path, is_directory = Path(entry.path), stat.S_ISDIR(info.st_mode)
                if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                    yield name, _Entry(None, info)
                    continue
                yield name, _Entry(path, info, is_directory and _is_opaque(path))
                if is_directory:
                    left.append((path, f"{name}/"))


def _is_opaque(path: Path) -> bool:
    for mark in _OPAQUE:
        try:
            if os.getxattr(path, mark, follow_symlinks=False) == b"y":
                return True
        except OSError:  # it has none, or the file system knows no such marks
            continue
    return False
