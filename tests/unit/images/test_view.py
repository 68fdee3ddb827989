# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Reading an image's files through its layers: as a mount would show them, and never the host's."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from casulo.images import view
from casulo.images.ids import PLAIN, Ids
from casulo.images.layers import unpack
from casulo.images.unpack import Budget
from casulo.model.errors import InvalidRequest
from support.images import FIFO, archive, folder, link, member
from support.machine import cannot_run

IDS = PLAIN if os.geteuid() == 0 else Ids(None)


def stacked(tmp_path: Path, *layers: bytes) -> list[Path]:
    return [unpack(io.BytesIO(content), tmp_path, IDS, Budget()).folder / "d" for content in layers]


def look(layers: list[Path], path: str) -> bytes | None:
    return view.read(layers, IDS, path)


LOWER = archive(
    folder("etc"),
    member("etc/passwd", b"lower"),
    member("etc/only-lower", b"1"),
    folder("opt"),
    member("opt/f", b"old"),
    folder("gone"),
    member("gone/f", b"1"),
    folder("file"),
    member("file/x", b"1"),
    link("lib", "usr/lib"),
    folder("usr/lib"),
    member("usr/lib/so", b"so"),
    member("was-file", b"1"),
)
UPPER = archive(
    folder("etc"),
    member("etc/passwd", b"upper"),
    folder("opt"),
    member("opt/.wh..wh..opq"),
    member("opt/g", b"new"),
    member(".wh.gone"),
    member("file", b"now a file"),
    folder("was-file"),
    member("was-file/y", b"2"),
)
PATHS = (
    "/etc/passwd",
    "/etc/only-lower",
    "/opt/f",
    "/opt/g",
    "/gone/f",
    "/file",
    "/file/x",
    "/lib/so",
    "/usr/lib/so",
    "/was-file",
    "/was-file/y",
    "/absent",
    "/etc/../etc/./passwd",
    "/../../etc/passwd",
    "/etc/passwd/x",
)


def test_upper_layers_win_and_deletions_hold(tmp_path: Path) -> None:
    layers = stacked(tmp_path, LOWER, UPPER)
    found = [look(layers, path) for path in PATHS]
    assert found == [
        b"upper",
        b"1",
        None,
        b"new",
        None,
        b"now a file",
        None,
        b"so",
        b"so",
        None,
        b"2",
        None,
        b"upper",
        b"upper",
        None,
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_the_kernel_sees_the_same(tmp_path: Path) -> None:
    layers = stacked(tmp_path, LOWER, UPPER)
    lower = ":".join(str(layer) for layer in reversed(layers))
    (tmp_path / "merged").mkdir()
    reads = "\n".join(
        f'cat "{tmp_path}/merged{path}" 2>/dev/null; echo "|$?"' for path in PATHS if ".." not in path
    )
    script = f'mount -t overlay overlay -o "lowerdir={lower}" "{tmp_path}/merged" || exit 9\n{reads}'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)
    if done.returncode == 9:
        cannot_run(f"overlay mounts fail here: {done.stderr.decode()}")
    mine = [look(layers, path) for path in PATHS if ".." not in path]
    assert done.stdout == b"".join(b"|1\n" if content is None else content + b"|0\n" for content in mine)


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../../../../../../etc/hostname", "/proc/self/root/etc/hostname"]
)
def test_links_stay_within_the_image(tmp_path: Path, target: str) -> None:
    layers = stacked(tmp_path, archive(folder("etc"), link("etc/passwd", target), link("dir", "/")))
    assert look(layers, "/etc/passwd") is None
    inside = stacked(
        tmp_path, archive(folder("etc"), link("etc/passwd", target), member("etc/hostname", b"inside"))
    )
    assert look(inside, "/etc/passwd") == (None if "proc" in target else b"inside")


def test_a_link_across_layers_is_followed(tmp_path: Path) -> None:
    top = archive(folder("etc"), link("etc/passwd", "../usr/share/passwd"))
    layers = stacked(tmp_path, archive(folder("usr/share"), member("usr/share/passwd", b"there")), top)
    assert look(layers, "/etc/passwd") == b"there"


def test_loops_pipes_folders_and_giants_are_no_files(tmp_path: Path) -> None:
    content = archive(
        link("a", "b"),
        link("b", "a"),
        member("p", kind=FIFO),
        folder("d"),
        member("huge", b"x" * ((1 << 20) + 1)),
    )
    layers = stacked(tmp_path, content)
    assert [look(layers, path) for path in ("/a", "/p", "/d", "/")] == [None] * 4
    with pytest.raises(InvalidRequest, match="larger than 1 MiB"):
        look(layers, "/huge")
    kinds = [view.kind(layers, IDS, path) for path in ("/d", "/huge", "/p", "/x", "/a", "/")]
    assert kinds == ["directory", "file", "other", "", "", "directory"]
    assert not any(
        Path(f"/proc/self/fd/{n}").exists() and str(tmp_path) in os.readlink(f"/proc/self/fd/{n}")
        for n in os.listdir("/proc/self/fd")
    )


@pytest.mark.parametrize(
    ("made", "part"),
    [
        (link("opt", "/nowhere"), "/opt"),
        (member("opt"), "/opt"),
        (folder("opt") + link("opt/own", "../../../tmp/x"), "/opt/own"),
        (folder("opt") + member("opt/own"), "/opt/own"),
        (folder("data") + link("opt", "/data"), ""),
        (folder("opt/own"), ""),
        (folder("else"), ""),
    ],
)
def test_what_is_in_the_way_of_a_directory(tmp_path: Path, made: bytes, part: str) -> None:
    layers = stacked(tmp_path, archive(made), archive(folder("tmp")))
    assert view.blocked(layers, IDS, "/opt/own") == part
