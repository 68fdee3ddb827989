# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which paths of the host sandboxes may mount, and opening them so that nobody can change them meanwhile.

A path is judged by where it really leads: links are followed on both sides, the caller's path and the
configuration's. What was judged is then opened part by part by the kernel (openat2) without following
any link, below the allowed directory, so a link that is put there after the judgement leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from casulo.images.rooted import BENEATH, NO_SYMLINKS, open_below
from casulo.model.errors import Code, InvalidRequest, RuntimeFailure
from casulo.model.volume import HostPath, Volume

_ESCAPES = (errno.EXDEV, errno.ELOOP, errno.ENOTDIR)
_NEW_FOLDER_MODE = 0o755


@dataclass(frozen=True)
class Place:
    """What a volume shows: `sub_path` of `inside` of the real directory `root`.

    `root` is trusted not to change hands, `inside` was judged, `sub_path` is the caller's word. `name` is
    what errors call it.
    """

    name: str
    root: str
    inside: str = ""
    sub_path: str = ""

    @property
    def path(self) -> str:
        """As one path, for people and for engines that take nothing better."""
        return os.path.join(self.root, self.inside, self.sub_path).rstrip("/") or "/"


class AllowedPaths:
    """The allow list; `closed` are directories that stay closed whatever it says."""

    def __init__(self, allowed: tuple[Path, ...], closed: tuple[Path, ...] = ()) -> None:
        self._allowed = allowed
        self._closed = closed

    def place(self, volume: Volume) -> Place:
        """Where the volume's path really leads. InvalidRequest when that is not allowed. Makes nothing."""
        assert isinstance(volume.source, HostPath)
        path = volume.source.host_path
        real = os.path.realpath(path)
        for folder in map(os.path.realpath, self._closed):
            if _within(real, folder) or _within(folder, real):
                raise _not_allowed(volume, f"{path} is, or holds, the server's own data")
        for root in map(os.path.realpath, self._allowed):
            if _within(real, root):
                if not os.path.exists(root):
                    raise _not_allowed(volume, f"the allowed directory {root} does not exist")
                inside = os.path.relpath(real, root)
                return Place(volume.name, root, "" if inside == "." else inside, volume.sub_path)
        raise _not_allowed(volume, f"{path} is not below an allowed directory")


def _within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _not_allowed(volume: Volume, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"volume {volume.name!r}: {what}",
        code=Code.VOLUME_HOST_PATH_NOT_ALLOWED,
        hint="the server's administrator allows paths in [storage] allowed_host_paths",
    )


@contextmanager
def opened(place: Place) -> Iterator[int]:
    """A descriptor (O_PATH) of what the place shows; directories that are missing are made.

    Links in `sub_path` may lead to other parts of the volume, and nowhere else.
    """
    with (
        _closing(_open_root(place)) as root,
        _closing(_inside(place, root)) as base,
        _closing(_sub_path(place, base)) as found,
    ):
        _check_kind(place, found)
        yield found


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_root(place: Place) -> int:
    top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(top, os.fsencode(place.root.lstrip("/")), os.O_PATH, BENEATH | NO_SYMLINKS)
    except OSError as error:
        raise _swapped(place) if error.errno in _ESCAPES else _cannot(place, place.root, error) from error
    finally:
        os.close(top)


def _inside(place: Place, root: int) -> int:
    """What the path leads to. It was judged without links, so whatever is one now came later."""
    try:
        return _descend(root, place.inside, follow=False)
    except OSError as error:
        if error.errno in _ESCAPES:
            raise _swapped(place) from error
        raise _cannot(place, f"{place.root}/{place.inside}", error) from error


def _sub_path(place: Place, base: int) -> int:
    try:
        return _descend(base, place.sub_path, follow=True)
    except OSError as error:
        if error.errno in _ESCAPES:
            raise _leaves(place) from error
        raise _cannot(place, f"subPath {place.sub_path!r}", error) from error


def _descend(base: int, path: str, *, follow: bool) -> int:
    """Open `path` below `base`, making the directories that are missing."""
    if not path:
        return os.dup(base)
    wanted = os.fsencode(path)
    try:
        return open_below(base, wanted, os.O_PATH, BENEATH if follow else BENEATH | NO_SYMLINKS)
    except FileNotFoundError:
        return _make(base, wanted.split(b"/"))


def _make(base: int, parts: list[bytes]) -> int:
    """Make directories one by one, following no link, since each could have been put there just now."""
    current = os.dup(base)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):  # it was there, or somebody else made it meanwhile
                os.mkdir(part, _NEW_FOLDER_MODE, dir_fd=current)
            deeper = open_below(current, part, os.O_PATH | os.O_DIRECTORY, BENEATH | NO_SYMLINKS)
        finally:
            os.close(current)
        current = deeper
    return current


def _check_kind(place: Place, found: int) -> None:
    mode = os.fstat(found).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise InvalidRequest(
            f"volume {place.name!r}: {place.path} is neither a directory nor a regular file",
            code=Code.VOLUME_INVALID_HOST_PATH,
            hint="sockets, pipes and devices are not mounted",
        )


def _swapped(place: Place) -> InvalidRequest:
    return InvalidRequest(
        f"volume {place.name!r}: {place.root}/{place.inside} was replaced after it was checked",
        code=Code.VOLUME_HOST_PATH_NOT_ALLOWED,
        hint="it is now a link, or leads through one",
    )


def _leaves(place: Place) -> InvalidRequest:
    return InvalidRequest(
        f"volume {place.name!r}: subPath {place.sub_path!r} leads out of the volume or through a file",
        code=Code.VOLUME_INVALID_SUB_PATH,
        hint="links in it must be relative and lead to places in the volume that exist",
    )


def _cannot(place: Place, what: str, error: OSError) -> RuntimeFailure:
    return RuntimeFailure(
        f"volume {place.name!r}: {what} cannot be opened or made: {os.strerror(error.errno or 0)}",
        code=Code.VOLUME_HOST_PATH_CREATE_FAILED,
    )
