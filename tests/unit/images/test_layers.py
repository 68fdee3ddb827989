# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Layers as overlayfs wants them: deletions, opaque folders, owners, times, and the way back."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from casulo.images import pack
from casulo.images.ids import PLAIN, Ids
from casulo.images.layers import unpack
from casulo.images.unpack import Budget
from casulo.model.errors import InvalidRequest
from support.images import archive, folder, hard_link, link, member

from .conftest import Unpack

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes and owners are root's")


def is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(path: Path, prefix: str = "trusted") -> bool:
    return f"{prefix}.overlay.opaque" in os.listxattr(path)


@as_root
def test_a_deletion_becomes_a_whiteout(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(folder("etc"), member("etc/.wh.passwd"), member(".wh.bin")))
    assert is_whiteout(root / "etc/passwd") and is_whiteout(root / "bin")


@as_root
@pytest.mark.parametrize("marked", ["", "a", "a/b"])
def test_an_emptied_folder_becomes_opaque(root: Path, unpacked: Unpack, marked: str) -> None:
    marker = f"{marked}/.wh..wh..opq" if marked else ".wh..wh..opq"
    unpacked(archive(member(marker), member("a/b/new", b"1")))
    assert is_opaque(root / marked)
    assert os.listdir(root / "a/b") == ["new"]


def test_single_user_mode_marks_in_the_users_own_words(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(folder("d"), member("d/.wh..wh..opq"), member(".wh.x")), Ids(None))
    assert is_opaque(root / "d", "user") and is_whiteout(root / "x")


@as_root
def test_a_deletion_hides_only_what_is_below_this_layer(root: Path, unpacked: Unpack) -> None:
    unpacked(
        archive(
            member("before", b"1"),
            member(".wh.before"),
            member(".wh.after"),
            member("after", b"2"),
            folder("d"),
            member("d/x", b"3"),
            member(".wh.d"),
            member(".wh.e"),
            folder("e"),
            member("e/y", b"4"),
            member(".wh.f"),
            member("f/z", b"5"),
        )
    )
    assert (root / "before").read_text() == "1" and (root / "after").read_text() == "2"
    for name in ("d", "e", "f"):
        assert is_opaque(root / name)
    assert (root / "d/x").is_file() and (root / "e/y").is_file() and (root / "f/z").is_file()


def test_notes_of_old_storage_drivers_are_left_out(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(folder(".wh..wh.plnk"), member(".wh..wh.aufs", b"x"), member("f", b"1")))
    assert os.listdir(root) == ["f"]


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh..."])
def test_a_deletion_of_nothing_is_refused(unpacked: Unpack, name: str) -> None:
    with pytest.raises(InvalidRequest, match="deletes nothing"):
        unpacked(archive(member(name)))


@as_root
def test_owners_are_shifted_everywhere(root: Path, unpacked: Unpack) -> None:
    unpacked(
        archive(
            folder("d", uid=1, gid=2), member("d/f", b"1", uid=65535, gid=65535), link("l", "d", uid=3, gid=4)
        ),
        Ids(1_000_000),
    )
    found = {name: (root / name).lstat() for name in (".", "d", "d/f", "l")}
    owners = {name: (status.st_uid - 1_000_000, status.st_gid - 1_000_000) for name, status in found.items()}
    assert owners == {".": (0, 0), "d": (1, 2), "d/f": (65535, 65535), "l": (3, 4)}


def test_modes_and_times_are_the_archives(root: Path, unpacked: Unpack) -> None:
    unpacked(
        archive(
            folder(".", mode=0o751, mtime=5),
            folder("d", mode=0o1777, mtime=7),
            member("d/f", b"1", mode=0o640, mtime=9),
            member("exact", b"", pax={"mtime": "12.345678901"}),
            link("l", "d/f", mtime=11),
        )
    )
    assert stat.S_IMODE(root.stat().st_mode) == 0o751 and root.stat().st_mtime == 5
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o1777 and (root / "d").stat().st_mtime == 7
    assert stat.S_IMODE((root / "d/f").stat().st_mode) == 0o640 and (root / "d/f").stat().st_mtime == 9
    assert (root / "exact").stat().st_mtime_ns == 12_345_678_901
    assert (root / "l").lstat().st_mtime == 11


def test_folders_that_the_archive_leaves_out_are_made_as_engines_make_them(
    root: Path, unpacked: Unpack
) -> None:
    unpacked(archive(member("a/b/c/f", b"1")))
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o755


def test_a_folder_named_again_keeps_what_is_in_it(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(folder("d"), member("d/f", b"1"), folder("d", mode=0o700)))
    assert (root / "d/f").is_file() and stat.S_IMODE((root / "d").stat().st_mode) == 0o700


def test_a_link_within_the_layer_is_followed_for_folders(root: Path, unpacked: Unpack) -> None:
    unpacked(
        archive(
            folder("usr/lib"),
            link("lib", "usr/lib"),
            link("abs", "/usr"),
            member("lib/a", b"1"),
            member("abs/lib/b", b"2"),
        )
    )
    assert sorted(os.listdir(root / "usr/lib")) == ["a", "b"]
    assert (root / "lib").is_symlink()


@as_root
def test_packing_is_the_reverse_of_unpacking(root: Path, unpacked: Unpack, tmp_path: Path) -> None:
    content = archive(
        folder("d", uid=1, mode=0o750),
        member("d/f", b"x" * 3000, uid=2, mode=0o4755, pax={"SCHILY.xattr.user.a": b"\xff"}),
        hard_link("d/h", "d/f"),
        link("l", "d/f", uid=3),
        folder("o"),
        member("o/.wh..wh..opq"),
        member(".wh.gone"),
        member("long" * 60, b"1"),
    )
    unpacked(content, Ids(500_000))
    packed = io.BytesIO()
    pack.write(root, Ids(500_000), packed)
    again = tmp_path / "again"
    again.mkdir()
    made = unpack(io.BytesIO(packed.getvalue()), again, PLAIN, Budget())
    assert tree(made.folder / "d", 0) == tree(root, 500_000)
    assert is_whiteout(made.folder / "d/gone") and is_opaque(made.folder / "d/o")
    assert (made.folder / "d/d/f").stat().st_nlink == 2


def tree(place: Path, base: int) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        target = os.readlink(path) if path.is_symlink() else ""
        whiteout = stat.S_ISCHR(status.st_mode)
        owner = () if whiteout else (status.st_uid - base, status.st_gid - base)
        attributes = tuple(os.listxattr(path, follow_symlinks=False))
        found[str(path.relative_to(place))] = (
            status.st_mode,
            owner,
            status.st_nlink,
            content,
            target,
            attributes,
        )
    return found
