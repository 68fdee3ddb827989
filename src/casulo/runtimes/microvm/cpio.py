# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Writing an archive in the form that the kernel unpacks as its initial memory disk (cpio "newc")."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

_MAGIC = "070701"
_END = "TRAILER!!!"


@dataclass(frozen=True)
class Member:
    """A directory when there is neither content nor device, else a file or a character device.

    Names have no leading slash. A device is its major and minor number.
    """

    name: str
    content: bytes | None = None
    mode: int = 0o755
    device: tuple[int, int] | None = None


def write(target: BinaryIO, members: Iterable[Member]) -> None:
    """Write the whole archive. Everything belongs to root and has no time, so equal input is equal output."""
    for number, member in enumerate(members, 1):
        _entry(target, number, member)
    _entry(target, 0, Member(_END, b"", 0))


def _kind(member: Member) -> int:
    if member.device is not None:
        return stat.S_IFCHR
    return stat.S_IFDIR if member.content is None else stat.S_IFREG


def _entry(target: BinaryIO, number: int, member: Member) -> None:
    encoded = member.name.encode() + b"\0"
    content = member.content or b""
    mode = _kind(member) | member.mode if number else 0
    links = 2 if stat.S_ISDIR(mode) else 1
    major, minor = member.device or (0, 0)
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, major, minor, len(encoded), 0)
    header = _MAGIC + "".join(f"{field:08X}" for field in fields)
    target.write(_padded(header.encode() + encoded))
    target.write(_padded(content))


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
