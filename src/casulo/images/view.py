# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Looking into stacked layers without mounting them, as overlayfs would show them.

Every step is taken by descriptor and without following links in the kernel; links are followed
here, within the image. So a hostile image cannot make us read a file of the host.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from casulo.images.ids import Ids
from casulo.model.errors import Code, InvalidRequest

_MOST_LINKS = 40
_LARGEST_FILE = 1 << 20
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def read(layers: Sequence[Path], ids: Ids, path: str) -> bytes | None:
    """A regular file's content; None when there is no such file. `layers` are lowest first."""
    with _found(layers, ids, path) as descriptor:
        if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise InvalidRequest(f"the image's {path} is larger than 1 MiB", code=Code.IMAGE_INVALID)
    return content


def kind(layers: Sequence[Path], ids: Ids, path: str) -> str:
    """`file`, `directory`, `other`, or empty when there is nothing; links are followed."""
    with _found(layers, ids, path) as descriptor:
        if descriptor is None:
            return ""
        mode = os.fstat(descriptor).st_mode
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def status(layers: Sequence[Path], ids: Ids, name: str) -> os.stat_result | None:
    """What the root directory has under `name`, a link itself and not its target; None when nothing."""
    with ExitStack() as stack:
        found = _Walk(stack, layers, ids).entry(os.fsencode(name.strip("/")))
        return None if found is None else os.fstat(found)


def blocked(layers: Sequence[Path], ids: Ids, path: str) -> str:
    """The first part of `path`, from the root on, that leads to no directory though it is there; or empty."""
    parts = _parts(os.fsencode(path))
    with ExitStack() as stack:
        walk = _Walk(stack, layers, ids)
        for end in range(1, len(parts) + 1):
            part = b"/".join(parts[:end])
            found = walk.to(part)
            if found is None and walk.to(part, follow=False) is None:
                return ""
            if found is None or not stat.S_ISDIR(os.fstat(found).st_mode):
                return "/" + os.fsdecode(part)
    return ""


@contextmanager
def _found(layers: Sequence[Path], ids: Ids, path: str) -> Iterator[int | None]:
    with ExitStack() as stack:
        walk = _Walk(stack, layers, ids)
        yield walk.to(os.fsencode(path))


class _Walk:
    """A place is what one directory of the image is made of: descriptors, topmost layer first."""

    def __init__(self, stack: ExitStack, layers: Sequence[Path], ids: Ids) -> None:
        self._stack = stack
        self._opaque = ids.xattr_prefix + b"opaque"
        self._root = self._merged(
            self._keep(os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            for layer in reversed(layers)
        )

    def entry(self, name: bytes) -> int | None:
        """The topmost object of this name in the root directory."""
        hits = self._look_up(self._root, name)
        return hits[0] if hits else None

    def to(self, path: bytes, *, follow: bool = True) -> int | None:
        places = [self._root]  # the way from the root, so that `..` goes back along it
        left = _parts(path)
        links = 0
        while left:
            name = left.pop(0)
            if name == b"..":
                places = places[:-1] or places
                continue
            hits = self._look_up(places[-1], name)
            if not hits:
                return None
            mode = os.fstat(hits[0]).st_mode
            if stat.S_ISLNK(mode) and (left or follow):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = os.readlink(b"", dir_fd=hits[0])
                left = _parts(target) + left
                places = [self._root] if target.startswith(b"/") else places
            elif stat.S_ISDIR(mode):
                places.append(hits)
            else:
                return None if left else hits[0]
        return places[-1][0] if places[-1] else None

    def _look_up(self, place: list[int], name: bytes) -> list[int]:
        """What is called `name` in this directory: one object, or the parts of a directory."""
        found: list[int] = []
        for directory in place:
            try:
                descriptor = self._keep(os.open(name, _STEP, dir_fd=directory))
            except (FileNotFoundError, NotADirectoryError):
                continue
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                found.append(descriptor)
                continue
            if not found and not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0):
                return [descriptor]
            break  # a whiteout, or something that the directory above hides
        return self._merged(iter(found))

    def _merged(self, parts: Iterator[int]) -> list[int]:
        merged = []
        for part in parts:
            merged.append(part)
            with contextlib.suppress(OSError):  # no such mark: what is below shows through
                if os.getxattr(f"/proc/self/fd/{part}", self._opaque) == b"y":
                    break
        return merged

    def _keep(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]
