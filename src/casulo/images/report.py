# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How far a pull or an import is, in a form that crosses processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_INTERVAL = 0.1


@dataclass(frozen=True)
class Progress:
    """`bytes` of the archive were read, of `total` (0 when that is not known); `layers` are there."""

    layers: int = 0
    all_layers: int = 0
    bytes: int = 0
    total: int = 0


class Report:
    """Collects from several threads and tells `emit` at most ten times a second."""

    def __init__(self, emit: Callable[[Progress], None] = lambda _: None) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._progress = Progress()
        self._told = 0.0

    def plan(self, layers: int, present: int, total: int) -> None:
        """What there is to do."""
        with self._lock:
            self._tell(replace(self._progress, layers=present, all_layers=layers, total=total))

    def read(self, count: int) -> None:
        """`count` more bytes came."""
        with self._lock:
            self._progress = replace(self._progress, bytes=self._progress.bytes + count)
            if time.monotonic() - self._told >= _INTERVAL:
                self._tell(self._progress)

    def layer_done(self) -> None:
        """One more layer is there."""
        with self._lock:
            self._tell(replace(self._progress, layers=self._progress.layers + 1))

    def _tell(self, progress: Progress) -> None:
        self._progress = progress
        self._told = time.monotonic()
        self._emit(progress)
