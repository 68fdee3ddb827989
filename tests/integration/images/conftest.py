# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A store and a layout to fill it from; afterwards the store must have no work lying about."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo.images.ids import PLAIN, Ids
from casulo.images.settings import ImagesSettings
from casulo.images.store import ImageStore
from support.images import LayoutWriter

MINE = PLAIN if os.geteuid() == 0 else Ids(None)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutWriter:
    return LayoutWriter(tmp_path / "layout")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ImageStore]:
    opened = ImageStore(tmp_path / "images", ImagesSettings(), MINE)
    await opened.open()
    yield opened
    await opened.close()
    assert os.listdir(tmp_path / "images/tmp") == []
    assert os.listdir(tmp_path / "images/locks") == []


def unpacked(store_root: Path) -> list[Path]:
    return sorted(path for path in (store_root / "l").iterdir() if (path / "layer").is_file())
