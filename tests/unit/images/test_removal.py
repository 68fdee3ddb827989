# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Trees that were made to be hard to delete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casulo.images.removal import remove_tree


def deep(place: Path, levels: int) -> None:
    """A tree that is deeper than any path is long."""
    place.mkdir()
    folder = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)


@pytest.mark.parametrize("levels", [0, 1, 90, 150, 4000])
def test_any_depth(tmp_path: Path, levels: int) -> None:
    deep(tmp_path / "tree", levels)
    (tmp_path / "tree" / "file").write_text("x")
    remove_tree(tmp_path / "tree")
    assert not list(tmp_path.iterdir())


def test_links_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    deep(tmp_path / "tree", 150)
    for name in ("tree/link", "tree/a/link"):
        (tmp_path / name).symlink_to(kept)
    (tmp_path / "tree" / "odd").mkdir(mode=0)
    os.mkfifo(tmp_path / "tree" / "pipe")
    remove_tree(tmp_path / "tree")
    assert (kept / "file").read_text() == "x"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "absent")
