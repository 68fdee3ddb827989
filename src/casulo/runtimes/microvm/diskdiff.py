# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What two machines made of their image differently, by their writable disks. Blocking."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from casulo.model.errors import RuntimeFailure
from casulo.model.snapshot import Change
from casulo.runtimes import branches
from casulo.runtimes.base import MOST_CHANGES
from casulo.runtimes.branches import Entry, Stack
from casulo.runtimes.microvm import ext4

_UPPER = "upper"
_OURS = {f"etc/{name}" for name in ("hostname", "hosts", "machine-id", "resolv.conf")}
"""Written into each machine when it becomes somebody."""


def compare(image: Path, old: Path, new: Path) -> Sequence[Change]:
    """From the disk `old` to `new`, by path."""
    try:
        with ExitStack() as stack:
            below, before, after = (stack.enter_context(ext4.Disk(path)) for path in (image, old, new))
            found = branches.compare(ext4.Below(below), Stack([_layer(before)]), Stack([_layer(after)]))
            return tuple(itertools.islice(found, MOST_CHANGES))
    except (OSError, struct.error) as error:  # deleted meanwhile, or nonsense that nobody thought of
        raise RuntimeFailure(f"the snapshots cannot be compared: {error}") from error


def _layer(disk: ext4.Disk) -> Iterator[tuple[str, Entry]]:
    return (item for item in ext4.layer(disk, _UPPER) if item[0] not in _OURS)
