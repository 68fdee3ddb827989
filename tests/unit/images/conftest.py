# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Unpacking an archive into a fresh folder, as the store does it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from casulo.images.ids import PLAIN, Ids
from casulo.images.stream import Stream
from casulo.images.tarstream import Archive, Reader
from casulo.images.unpack import Budget, Tally, unpack

Unpack = Callable[..., Tally]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the layer goes; `outside` beside it must stay as it is."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("untouched")
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def unpacked(root: Path) -> Unpack:
    """Unpack bytes into `root`."""

    def run(content: bytes, ids: Ids | None = None, budget: Budget | None = None) -> Tally:
        stream = Stream(io.BytesIO(content))
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        mine = PLAIN if os.geteuid() == 0 else Ids(None)
        try:
            reader = Reader(stream.next_piece)
            return unpack(Archive(reader), descriptor, ids or mine, budget or Budget())
        finally:
            stream.close()
            os.close(descriptor)

    return run
