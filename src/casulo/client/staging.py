# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Writing a local file so that it is either whole or not there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def staged(destination: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `destination` when the block ends well.

    Devices and pipes cannot be replaced; they are written to directly.
    """
    if destination.exists() and not stat.S_ISREG(destination.stat().st_mode):
        with destination.open("wb") as file:
            yield file
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        draft.chmod(_mode_for(destination))
        draft.replace(destination)
    finally:
        draft.unlink(missing_ok=True)


def _mode_for(destination: Path) -> int:
    """The mode of what is replaced; for a new file what the umask leaves."""
    if destination.exists():
        return stat.S_IMODE(destination.stat().st_mode)
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
