# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes with the official packages, on a server that allows one directory of its host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.official import Official
from support.server import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("host-volume")
    (made / "marker.txt").write_text("from the host")
    return made


@pytest.fixture(scope="module")
def generous(new_module_server: Callable[..., Server], folder: Path) -> Server:
    return new_module_server("local", extra=f'[storage]\nallowed_host_paths = ["{folder}"]\n')


@pytest.mark.parametrize("name", ["host_path", "named_volume", "refusals"])
def test_official_volumes(name: str, generous: Server, folder: Path, official: Official) -> None:
    official.run(f"volumes.{name}", generous, proxy=False, folder=str(folder))
