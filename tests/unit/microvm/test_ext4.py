# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Disks of machines are read as the kernel would, and harmful ones do no harm."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from casulo.model.errors import RuntimeFailure
from casulo.model.snapshot import Change
from casulo.runtimes.local import layerdiff
from casulo.runtimes.microvm import diskdiff, disks, ext4

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device files and marks of overlayfs need root")


def made(tmp_path: Path, name: str) -> Path:
    """A disk of what is in the folder of that name."""
    target = tmp_path / f"{name}.ext4"
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-O", disks._FEATURES]
    subprocess.run([*command, "-d", tmp_path / name, target, "6000"], check=True, capture_output=True)
    return target


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    found = tmp_path / "own" / "upper"
    found.mkdir(parents=True)
    (found / "many").mkdir()
    for number in range(600):
        (found / "many" / f"a name that is rather long {number}").write_text(str(number))
    (found / "large").write_bytes(os.urandom(3_000_001))
    with (found / "sparse").open("wb") as file:
        file.seek(5 << 30)
        file.write(b"end")
    os.symlink("short", found / "link")
    os.symlink("y" * 300, found / "long link")
    os.mkfifo(found / "pipe")
    os.mknod(found / "gone", 0o020000, 0)
    os.mknod(found / "device", 0o020666, os.makedev(5, 300))
    os.chown(found / "many", 70_000, 123_456)
    for name in ("opaque", "opaque with more"):
        (found / name).mkdir()
        if "more" in name:
            os.setxattr(found / name, "user.more", b"z" * 200)
        os.setxattr(found / name, "trusted.overlay.opaque", b"y")
    (found / os.fsdecode(b"no \xff text")).write_text("content")
    return found


def test_everything_is_as_the_kernel_sees_it(tmp_path: Path, upper: Path) -> None:
    with ext4.Disk(made(tmp_path, "own")) as disk:
        read, real = dict(ext4.layer(disk, "upper")), dict(layerdiff._walk(upper))
        assert read.keys() == real.keys() and len(read) > 600
        for name, entry in read.items():
            other = real[name]
            assert (entry.removed, entry.opaque) == (other.removed, other.opaque), name
            assert entry.same(other) and other.same(entry), name
        assert [name for name in sorted(read) if read[name].removed] == ["gone"]
        assert sum(entry.opaque for entry in read.values()) == 2
        below = ext4.Below(disk)
        assert below.says("upper/large/x") is below.says("upper/nothing") is False


def test_branches_are_compared_over_their_image(tmp_path: Path) -> None:
    for name in ("image", "old/upper", "new/upper"):
        for folder in ("etc", "usr/old"):
            (tmp_path / name / folder).mkdir(parents=True)
    image, old, new = tmp_path / "image", tmp_path / "old/upper", tmp_path / "new/upper"
    for place, files in (
        (image, ("etc/same", "etc/edited", "etc/removed", "usr/old/file")),
        (old, ("etc/mine", "etc/hostname", "etc/same")),
        (new, ("etc/edited", "etc/mine", "etc/fresh", "etc/hostname")),
    ):
        for name in files:
            (place / name).write_text("as it was" if name in ("etc/mine", "etc/same") else place.parent.name)
    os.mknod(new / "etc/removed", 0o020000, 0)
    os.setxattr(new / "usr/old", "trusted.overlay.opaque", b"y")
    found = diskdiff.compare(*(made(tmp_path, name) for name in ("image", "old", "new")))
    assert found == (
        Change("/etc/edited", "changed"),
        Change("/etc/fresh", "added"),
        Change("/etc/removed", "removed"),
    )


def _words(disk: Path, changes: dict[int, bytes]) -> Path:
    with disk.open("r+b") as file:
        for place, content in changes.items():
            file.seek(place)
            file.write(content)
    return disk


@pytest.mark.parametrize(
    "change",
    [
        {1024 + 0x38: b"\0\0"},
        {1024 + 0x18: b"\x20\0\0\0"},
        {1024 + 0x28: b"\0\0\0\0"},
        {1024 + 0x58: b"\xff\xff"},
        {1024 + 0x60: b"\xff\xff\xff\xff"},
        {1024 + 0xFE: b"\x01\0"},
        {4096 + 8: b"\xff\xff\xff\xff"},
    ],
)
def test_a_head_of_nonsense_is_refused(tmp_path: Path, upper: Path, change: dict[int, bytes]) -> None:
    disk = _words(made(tmp_path, "own"), change)
    with pytest.raises(RuntimeFailure, match="cannot be read"), ext4.Disk(disk) as opened:
        list(ext4.layer(opened, "upper"))


def test_a_directory_in_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "own/upper/inner").mkdir(parents=True)
    disk = made(tmp_path, "own")
    with ext4.Disk(disk) as opened:
        upper = opened.names(opened.inode(2))[b"upper"]
        ((_, _, block),) = opened.runs(opened.inode(upper))
        content = opened._at(block * 4096, 4096)
    place = content.index(b"inner") - 8
    _words(disk, {block * 4096 + place: struct.pack("<I", upper)})
    with pytest.raises(RuntimeFailure, match="two places"), ext4.Disk(disk) as opened:
        list(ext4.layer(opened, "upper"))


def test_random_damage_is_refused_or_read(tmp_path: Path, upper: Path) -> None:
    for path in (upper / "many").iterdir():
        if not path.name.endswith("7"):
            path.unlink()
    whole = made(tmp_path, "own").read_bytes()
    for seed in range(25):
        dice, damaged = random.Random(seed), bytearray(whole)
        for _ in range(dice.choice((1, 20, 300))):
            place = dice.choice((dice.randrange(1024, 8192), dice.randrange(8192, 4_000_000)))
            damaged[place] = dice.randrange(256)
        disk = tmp_path / "damaged.ext4"
        disk.write_bytes(damaged)
        try:
            diskdiff.compare(disk, disk, tmp_path / "own.ext4")
        except RuntimeFailure as refused:
            assert "cannot be" in str(refused), seed
