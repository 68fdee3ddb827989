# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Copies of programs in sealed memory, from which they are started.

crun must not be reachable for writing from the containers that it starts, so it makes such a copy of itself
at every start and begins again from it, unless it runs from one already. One copy, which nothing can write
to any more, serves all starts, and saves each of them half of crun's own loading.
"""

from __future__ import annotations

import fcntl
import os
import threading
from dataclasses import dataclass
from pathlib import Path

_MFD_EXEC = 0x10  # asked for since Linux 6.3, unknown before
_ADD_SEALS, _EVERY_SEAL = 1033, 0x1 | 0x2 | 0x4 | 0x8


@dataclass(frozen=True)
class _Version:
    """Tells one content of a path from the next."""

    device: int
    inode: int
    changed: int
    size: int


class SealedCopies:
    """The copies of one process; each is kept until another version of its program is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Path, tuple[_Version, int]] = {}

    def of(self, program: Path) -> int | None:
        """A descriptor of the copy, closed on exec; None where the host does not let such memory be run."""
        status = program.stat()
        version = _Version(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        with self._lock:
            known, descriptor = self._copies.get(program, (None, -1))
            if known != version:
                # The older copy stays open: a start in another thread may be about to use it.
                descriptor = _copied(program)
                self._copies[program] = (version, descriptor)
        return None if descriptor < 0 else descriptor


def _copied(program: Path) -> int:
    descriptor = -1
    try:
        descriptor = _memory(program.name)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(program.read_bytes())
        fcntl.fcntl(descriptor, _ADD_SEALS, _EVERY_SEAL)
        _check_runs(descriptor)
    except OSError:  # the program then looks after itself, as it does everywhere else
        if descriptor >= 0:
            os.close(descriptor)
        return -1
    return descriptor


def _memory(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError:
        return os.memfd_create(name, flags)


def _check_runs(descriptor: int) -> None:
    if not os.access(f"/proc/self/fd/{descriptor}", os.X_OK):
        raise PermissionError("memory files may not be run here")
