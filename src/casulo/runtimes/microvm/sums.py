# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whether the files of a frozen machine are still what was written. Blocking.

A machine that is restored from a damaged file may run for long before it shows. So each file's sum is
noted when it is made, and compared when a server uses it for the first time, or when it has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from casulo.runtimes.microvm import disks
from casulo.runtimes.microvm.vmm import MEMORY, STATE

NOTE = "sums.json"
FILES = (STATE, MEMORY, "disk")
_CHUNK = 64 << 10
_NOTHING = bytes(_CHUNK)
Stamp = tuple[tuple[str, int, int, int], ...]
"""Changes when one of the files is another one, or was written to."""


def note(folder: Path) -> None:
    """Write down the sums of the files that are there."""
    found = {name: _sum(folder / name) for name in FILES if (folder / name).exists()}
    partial = folder / f".{NOTE}"
    partial.write_text(json.dumps(found))
    partial.rename(folder / NOTE)


def is_noted(folder: Path) -> bool:
    """Whether there is anything to compare with."""
    return (folder / NOTE).exists()


def damaged(folder: Path) -> str:
    """The name of a file that is not what it was, or is not there; empty when all is well."""
    try:
        noted = json.loads((folder / NOTE).read_text())
        return next((name for name in FILES if name in noted and _sum(folder / name) != noted[name]), "")
    except (OSError, ValueError, TypeError):
        return NOTE


def stamp(folder: Path) -> Stamp | None:
    """None when a file is missing that is always there."""
    found = list(_stamps(folder))
    return tuple(found) if {name for name, *_ in found} >= {STATE, "disk", NOTE} else None


def _stamps(folder: Path) -> Iterable[tuple[str, int, int, int]]:
    for name in (*FILES, NOTE):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        yield name, status.st_ino, status.st_size, status.st_mtime_ns


def _sum(path: Path) -> str:
    """Of every chunk that is not zero. What of a file is a hole may change; what it reads as does not."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(str(size).encode())
        done = 0
        for start, end in disks.extents(file.fileno(), size):
            for place in range(max(done, start // _CHUNK * _CHUNK), end, _CHUNK):
                chunk = os.pread(file.fileno(), _CHUNK, place)
                if chunk != _NOTHING[: len(chunk)]:
                    digest.update(place.to_bytes(8, "big") + chunk)
                done = place + _CHUNK
    return digest.hexdigest()
