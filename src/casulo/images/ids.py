# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who owns the files of an unpacked image on this host, and in which words overlayfs reads it.

    shifted      uid 0 of the image is `base` on the host; the sandboxes' user namespace maps it back
    plain        the same with base 0: for runtimes without a user namespace
    single user  everything belongs to the server's user, who is root inside; the image's own uids are
                 lost, and so is every difference between its users

An unpacked layer fits one of them only, so each keeps its own copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from casulo.model.errors import Code, Unsupported

ID_RANGE = 65536
_HIGHEST = 2**32 - 2  # one more means "leave it as it is" to the kernel


@dataclass(frozen=True)
class Ids:
    """`base` is the host uid of the image's root; None keeps everything with the server's user."""

    base: int | None

    @property
    def name(self) -> str:
        """Part of an unpacked layer's key."""
        return "user" if self.base is None else str(self.base)

    @property
    def xattr_prefix(self) -> bytes:
        """Where overlayfs looks for its marks; ordinary users cannot write the trusted ones."""
        return b"user.overlay." if self.base is None else b"trusted.overlay."

    def owner(self, uid: int, gid: int, path: bytes) -> tuple[int, int]:
        """Host uid and gid of `path`; Unsupported when the user namespace has no place for them."""
        if self.base is None:
            return os.geteuid(), os.getegid()
        highest = ID_RANGE - 1 if self.base else _HIGHEST
        if uid > highest or gid > highest:
            raise Unsupported(
                f"{os.fsdecode(path)!r} belongs to {uid}:{gid}, and sandboxes have ids up to {highest}",
                code=Code.IMAGE_UNSUPPORTED,
                hint='build the image with smaller ids, or set [local] userns = "off"',
            )
        return self.base + uid, self.base + gid

    def original(self, uid: int, gid: int) -> tuple[int, int]:
        """The image's ids of a file that is owned so on the host."""
        return (0, 0) if self.base is None else (uid - self.base, gid - self.base)


PLAIN = Ids(0)


def parse(name: str) -> Ids:
    """From `Ids.name` back."""
    return Ids(None if name == "user" else int(name))
