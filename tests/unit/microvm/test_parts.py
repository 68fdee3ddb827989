# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The parts that machines are made from: archives, kernels, disks, folders."""

from __future__ import annotations

import io
import os
import struct
import subprocess
from pathlib import Path

import pytest

from casulo.model.errors import InvalidRequest, Unsupported
from casulo.runtimes.microvm import bzimage, cpio, debian, disks, kernel
from casulo.runtimes.microvm.capped import Capped
from casulo.runtimes.microvm.folder import Folders, Parts
from casulo.runtimes.microvm.vmm import Hardware

PARTS = Parts(Path("/k"), Path("/i"), Path("/d"), Hardware(2, 256 << 20, 1 << 30), "qemu")


def test_archive_is_one_that_cpio_understands(tmp_path: Path) -> None:
    whole = io.BytesIO()
    members = [
        cpio.Member("dev"),
        cpio.Member("init", b"x" * 5, 0o755),
        cpio.Member("dev/null", device=(1, 3)),
    ]
    cpio.write(whole, members)
    done = subprocess.run(
        ["cpio", "-tv"], input=whole.getvalue(), capture_output=True, check=True, env={"TZ": "UTC"}
    )
    lines = done.stdout.decode().splitlines()
    assert [line.split()[-1] for line in lines] == ["dev", "init", "dev/null"]
    assert lines[0].startswith("drwx") and lines[1].startswith("-rwx") and lines[2].startswith("crwx")


def test_archive_is_the_same_each_time() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for target in (first, second):
        cpio.write(target, [cpio.Member("a", b"1")])
    assert first.getvalue() == second.getvalue()


def test_package_is_read_without_dpkg(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in (
        (
            "DEBIAN/control",
            "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n",
        ),
        ("boot/vmlinuz-1", "kernel"),
        ("lib/other", "no"),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    package = tmp_path / "x.deb"
    subprocess.run(["dpkg-deb", "-Zxz", "--build", str(tree), str(package)], check=True, capture_output=True)
    assert dict(debian.files(package, lambda name: name.startswith("boot/"))) == {"boot/vmlinuz-1": b"kernel"}


@pytest.mark.parametrize("content", [b"", b"!<arch>\n", b"!<arch>\n" + b"x" * 60, b"PK"])
def test_what_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.deb").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"x\.deb"):
        dict(debian.files(tmp_path / "x.deb", lambda name: True))


def test_drivers_come_after_what_they_need() -> None:
    def driver(needs: str) -> bytes:
        return b"\x7fELF\0depends=" + needs.encode() + b"\0name=x\0"

    drivers = {
        "a-b": driver("c"),
        "c": driver("d,e"),
        "d": driver(""),
        "e": driver("d"),
        "unused": driver(""),
    }
    assert kernel.load_order(drivers, ("a_b", "builtin", "d")) == ["d", "e", "c", "a-b"]


def test_newest_kernel_is_found(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no kernel"):
        kernel.find(tmp_path)
    for release in ("6.1.0-9-cloud-amd64", "6.1.0-57-cloud-amd64"):
        (tmp_path / release / "modules").mkdir(parents=True)
        (tmp_path / release / "modules" / kernel.ORDER).touch()
    (tmp_path / ".unpacking-x").mkdir()
    assert kernel.find(tmp_path).release == "6.1.0-57-cloud-amd64"


def _image(payload: bytes) -> bytes:
    head = bytearray(0x260)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 0, len(payload))
    return bytes(head).ljust(1024, b"\0") + payload


def test_kernels_are_uncompressed() -> None:
    # A literal run, a match that overlaps itself, and the last literals.
    block = bytes([0x4F]) + b"\x7fELF" + b"\x01\x00" + bytes([10]) + bytes([0x20]) + b"xy"
    lz4 = b"\x02\x21\x4c\x18" + struct.pack("<I", len(block)) + block
    assert bzimage.extract(_image(lz4)) == b"\x7fELF" + b"F" * 29 + b"xy"
    for wrong in (b"", b"nonsense", b"\xfd7zXZ\0broken", lz4[:-3]):
        with pytest.raises(Unsupported):
            bzimage.extract(_image(wrong))
    with pytest.raises(Unsupported, match="boot header"):
        bzimage.extract(b"\0" * 2048)


def test_copies_keep_holes(tmp_path: Path) -> None:
    source = tmp_path / "a"
    with source.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"x" * 5000)
    disks.copy(source, tmp_path / "b")
    copied = (tmp_path / "b").stat()
    assert copied.st_size == 64 << 20 and copied.st_blocks * 512 < 1 << 20
    with (tmp_path / "b").open("rb") as file:
        file.seek(32 << 20)
        assert file.read(5001) == b"x" * 5000 + b"\0"


def test_record_is_behind_the_file_system(tmp_path: Path) -> None:
    assert disks.read_record(tmp_path / "none") == b""
    path = tmp_path / "disk"
    disks.make_blank(path, 32 << 20)
    assert path.stat().st_size == 32 << 20 and disks.read_record(path) == b""
    with path.open("r+b") as file:
        file.seek(-disks.RECORD_BYTES, os.SEEK_END)
        file.write(b'{"event":"exit"}\n')
    assert disks.read_record(path) == b'{"event":"exit"}\n'
    assert subprocess.run(["e2fsck", "-fn", str(path)], capture_output=True).returncode == 0


def test_folder_is_found_again_by_name(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "data", tmp_path / "run")
    folders.prepare()
    folder = folders.of("spare-1")
    folder.create(PARTS)
    assert folder.parts() == PARTS and folder.process() is None and folder.index() is None
    folder.slot.write_text("7")
    folder.rename(folders.of("box"))
    assert folders.names() == {"box"} and folders.of("box").index() == 7
    folders.of("box").remove()
    folders.of("box").remove()
    assert folders.names() == set()


def test_capped_file_keeps_its_end(tmp_path: Path) -> None:
    target = Capped(tmp_path / "log", 1000)
    for number in range(300):
        target.append(f"line {number}\n".encode())
    target.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-1] == "line 299" and len(lines) < 120 and lines[0].startswith("line ")
