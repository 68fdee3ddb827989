# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What two stacks of layers show differently, wherever their files are kept. Blocking.

A layer is what overlayfs left of a sandbox: files, a device 0/0 for each name that was removed, and a
mark on each directory that hides what is below it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from casulo.model.errors import RuntimeFailure
from casulo.model.snapshot import Change

CHUNK = 64 << 10
_MOST_ENTRIES = 1_000_000
_NOTHING = bytes(CHUNK)


class Content(Protocol):
    """What is in a file or a link. Two that are equal have the same."""

    def target(self) -> bytes:
        """Where a symbolic link points."""

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Aligned pieces of `CHUNK` bytes with their offsets; what is a hole may be left out."""


@dataclass(frozen=True)
class Entry:
    """What a layer says of one path: `removed`, or what is there."""

    mode: int = 0
    owner: tuple[int, int] = (0, 0)
    device: int = 0
    size: int = 0
    opaque: bool = False
    removed: bool = False
    content: Content | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    def same(self, other: Entry) -> bool:
        """Whether nobody could tell them apart."""
        if (self.mode, self.owner, self.device) != (other.mode, other.owner, other.device):
            return False
        if self.content is None or other.content is None or self.content == other.content:
            return True
        if stat.S_ISLNK(self.mode):
            return self.content.target() == other.content.target()
        if not stat.S_ISREG(self.mode):
            return True
        pairs = zip_longest(_written(self.content), _written(other.content))
        return self.size == other.size and all(one == two for one, two in pairs)


def _written(content: Content) -> Iterator[tuple[int, bytes]]:
    return (piece for piece in content.chunks() if piece[1] != _NOTHING[: len(piece[1])])


class Below(Protocol):
    """What lies under the layers that are compared."""

    def says(self, name: str) -> Entry | bool:
        """What is at a path: an entry, False for nothing, True for what nobody knows."""


class Stack:
    """The topmost word on each path that any of the layers has something to say about."""

    def __init__(self, layers: Iterable[Iterable[tuple[str, Entry]]]) -> None:
        self.entries: dict[str, Entry] = {}
        self._below: dict[str, set[str]] = {}
        for layer in layers:
            for name, entry in layer:
                self._lay(name, entry)

    def _lay(self, name: str, entry: Entry) -> None:
        replaced = self.entries.get(name)
        hides = entry.opaque or not entry.is_folder
        if replaced and hides and replaced.is_folder:
            self._drop_below(name)
        if replaced and replaced.opaque and entry.is_folder:
            entry = replace(entry, opaque=True)
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

    def says(self, name: str) -> Entry | bool:
        """The entry of a path; else whether what lies below the stack still shows there."""
        found = self.entries.get(name)
        if found is not None:
            return found
        while "/" in name:
            name = name.rpartition("/")[0]
            above = self.entries.get(name)
            if above is not None:
                return above.is_folder and not above.opaque
        return True


def compare(below: Below, before: Stack, after: Stack) -> Iterator[Change]:
    """From one to the other, each on top of `below`, by path."""
    for name in sorted(before.entries.keys() | after.entries.keys()):
        kind = _kind(below, before.says(name), after.says(name), name)
        if kind:
            yield Change(f"/{name}", kind)


def _kind(below: Below, old: Entry | bool, new: Entry | bool, name: str) -> str:
    """`added`, `removed`, `changed`, or nothing."""
    was, now = _shown(below, old, name), _shown(below, new, name)
    if isinstance(was, Entry) and isinstance(now, Entry):
        return "" if was.same(now) else "changed"
    if was is False or now is False:
        return "" if was is now else ("added" if was is False else "removed")
    # One of them shows what lies below all layers, of which nothing is known here but that it may be there.
    seen = was if isinstance(was, Entry) else now
    return "" if isinstance(seen, bool) or seen.is_folder else "changed"


def _shown(below: Below, said: Entry | bool, name: str) -> Entry | bool:
    """What is there: an entry, False for nothing, True for whatever the image has."""
    if said is True:
        said = below.says(name)
    return False if isinstance(said, Entry) and said.removed else said
