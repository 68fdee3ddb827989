# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A directory tree as a layer's archive: the reverse of `unpack`, deletions included.

Used for folders that become images, for what a build wrote on top of its base, and to unpack a
layer for somebody else. The order of members is by name, so that the same tree gives the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO

from casulo.images.ids import Ids
from casulo.images.unpack import OPAQUE, WHITEOUT

_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}
_XATTR = "SCHILY.xattr."


def write(tree: Path, ids: Ids, out: BinaryIO) -> None:
    """Write everything below `tree`; sockets and device nodes stay out."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _Packer(archive, ids).folder(str(tree), "")


class _Packer:
    def __init__(self, archive: tarfile.TarFile, ids: Ids) -> None:
        self._archive = archive
        self._ids = ids
        self._opaque = os.fsdecode(ids.xattr_prefix) + "opaque"
        self._links: dict[tuple[int, int], str] = {}

    def folder(self, path: str, name: str) -> None:
        """A directory and all that is in it."""
        self._member(path, name or ".", os.lstat(path))
        if self._is_opaque(path):
            self._empty(f"{name}/{os.fsdecode(OPAQUE)}".lstrip("/"))
        with os.scandir(path) as found:
            children = sorted(found, key=lambda child: child.name)
        for child in children:
            inner = f"{name}/{child.name}" if name else child.name
            status = child.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self.folder(child.path, inner)
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                self._empty(f"{name}/{os.fsdecode(WHITEOUT)}{child.name}".lstrip("/"))
            else:
                self._member(child.path, inner, status)

    def _member(self, path: str, name: str, status: os.stat_result) -> None:
        kind = _TYPES.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            return
        info = tarfile.TarInfo(name)
        info.type = kind
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = self._ids.original(status.st_uid, status.st_gid)
        info.mtime = status.st_mtime_ns // 1_000_000_000
        if kind == tarfile.SYMTYPE:
            info.linkname = os.readlink(path)
        elif kind != tarfile.DIRTYPE and self._is_known(info, status):
            info.type = tarfile.LNKTYPE
        else:
            info.pax_headers = self._attributes(path)
        if info.type != tarfile.REGTYPE:
            self._archive.addfile(info)
            return
        info.size = status.st_size
        with open(path, "rb") as content:
            self._archive.addfile(info, content)

    def _is_known(self, info: tarfile.TarInfo, status: os.stat_result) -> bool:
        """Whether it is another name of a member; `linkname` is then that one."""
        if status.st_nlink < 2:
            return False
        info.linkname = self._links.setdefault((status.st_dev, status.st_ino), info.name)
        return info.linkname != info.name

    def _attributes(self, path: str) -> dict[str, str]:
        found = {}
        for key in os.listxattr(path, follow_symlinks=False):
            if key.startswith("user.") and not key.startswith("user.overlay."):
                value = os.getxattr(path, key, follow_symlinks=False)
                found[_XATTR + key] = value.decode("utf-8", "surrogateescape")
        return found

    def _is_opaque(self, path: str) -> bool:
        with contextlib.suppress(OSError):  # no such attribute
            return os.getxattr(path, self._opaque) == b"y"
        return False

    def _empty(self, name: str) -> None:
        self._archive.addfile(tarfile.TarInfo(name))
