# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Comparing stacks of layers as overlayfs leaves them."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from casulo.runtimes.local.layerdiff import compare
from support.machine import cannot_run


@pytest.fixture
def layer(tmp_path: Path):
    """Makes one of texts by name; None removes, a name with a slash at its end is a directory."""
    if os.geteuid() != 0:
        cannot_run("only root makes the devices that stand for removed files")

    def make(name: str, opaque: tuple[str, ...] = (), **files: str | None) -> Path:
        root = tmp_path / name
        root.mkdir()
        for place, content in files.items():
            path = root / place.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(0, 0))
            else:
                path.write_text(content)
        for place in opaque:
            (root / place).mkdir(parents=True, exist_ok=True)
            os.setxattr(root / place, "trusted.overlay.opaque", b"y")
        return root

    return make


def told(*stacks) -> dict[str, str]:
    return {change.path: change.kind for change in compare(*stacks)}


def test_two_that_grew_from_one_image(layer) -> None:
    old = layer("old", same="1", edited="1", dropped="1", dir__deep="1", gone=None)
    new = layer("new", same="1", edited="22", fresh="1", dir__deep="1", gone=None)
    assert told([], [old], [new]) == {
        "/edited": "changed",
        "/dropped": "changed",  # the image may have one
        "/fresh": "changed",
    }


def test_what_is_known_of_the_layers_below(layer) -> None:
    base = layer("base", kept="1", edited="1", removed="1", tree__a="1", tree__b__c="1", hidden__x="1")
    child = layer("child", ("hidden",), edited="2", removed=None, tree=None, hidden__y="1")
    assert told([base], [], [child]) == {
        "/edited": "changed",
        "/removed": "removed",
        "/tree": "removed",
        "/hidden/y": "changed",
    }
    back = told([base], [child], [])
    assert back["/removed"] == "added" and back["/tree"] == "added"
    assert told([base], [child], [child]) == {}


def test_a_later_layer_hides_what_was_below(layer) -> None:
    first = layer("first", dir__old="1", dir__sub__deep="1")
    second = layer("second", ("dir",), dir__new="1")
    plain = layer("plain", dir__old="1", dir__sub__deep="1", dir__new="1")
    assert told([], [plain], [first, second]) == {
        "/dir/old": "removed",
        "/dir/sub": "removed",
        "/dir/sub/deep": "removed",
    }


def test_modes_links_and_kinds_count(layer) -> None:
    old, new = layer("old", a="1", b="1", c="1"), layer("new", a="1", b="1")
    (new / "a").chmod(0o600)
    (old / "link").symlink_to("a")
    (new / "link").symlink_to("b")
    (new / "c").mkdir()
    os.mkfifo(old / "pipe")
    os.mkfifo(new / "pipe")
    assert told([], [old], [new]) == {"/a": "changed", "/link": "changed", "/c": "changed"}


def test_deep_trees_are_no_danger(layer) -> None:
    deep, flat = layer("deep"), layer("flat")
    folder = deep
    for _ in range(1500):
        folder = folder / "d"
        folder.mkdir()
    try:
        assert told([], [deep], [flat]) == {}
    finally:  # pytest's own clean-up cannot take so deep a tree away
        subprocess.run(["rm", "-rf", deep], check=True)
