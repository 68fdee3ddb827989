# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Opening paths that somebody else chose, below a directory that they cannot leave.

The kernel resolves them (openat2), so there is no moment between a check and its use. An absolute
link, or one with too many `..`, ends at the given directory.
"""

from __future__ import annotations

import ctypes
import errno
import os

NO_MAGIC_LINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
IN_ROOT = 0x10
_OPENAT2 = 437  # the same on every architecture
_RETRIES = 100

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    """struct open_how."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_below(root: int, path: bytes, flags: int, resolve: int = IN_ROOT) -> int:
    """A descriptor of `path` as it looks when `root` is the root directory; closes on exec."""
    how = _How(flags | os.O_CLOEXEC, 0, resolve | NO_MAGIC_LINKS)
    for _ in range(_RETRIES):
        found: int = _libc.syscall(
            _OPENAT2, root, ctypes.c_char_p(path or b"."), ctypes.byref(how), ctypes.sizeof(how)
        )
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # something was renamed meanwhile
            break
    raise OSError(number, os.strerror(number), os.fsdecode(path))


def sync_file_system(descriptor: int) -> None:
    """Write everything that is waiting for the disk below this descriptor's mount."""
    if _libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")
