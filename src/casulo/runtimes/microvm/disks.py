# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The disks of virtual machines: images that many share, and one writable disk for each.

A writable disk is a sparse file. Its last 64 KiB are not part of its file system: the guest writes
there how its entrypoint ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure, Unsupported

RECORD_BYTES = 64 << 10
_BLOCK = 4096
_FEATURES = "^has_journal,^resize_inode"
_SLACK_BYTES = 64 << 20
_COPY = 1 << 20


@dataclass(frozen=True)
class Tree:
    """What a disk is made from: `layers`, the lowest first, and host folders shown on top of them."""

    layers: Sequence[Path]
    binds: Sequence[str] = ()


def make_image(tree: Tree, target: Path) -> None:
    """Write the tree as a file system into `target`; complete or not there at all. Blocks for long."""
    _require_mke2fs()
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{os.getpid()}")
    partial = staging / "image"
    root = staging / "root"
    root.mkdir(parents=True)
    try:
        # The mounts are in a namespace that ends with the thread.
        linux.in_own_thread(lambda: _fill(tree, root, partial))
        partial.chmod(0o444)
        partial.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill(tree: Tree, root: Path, target: Path) -> None:
    linux.private_mounts()
    _stack(tree.layers, root)
    for folder in tree.binds:
        linux.bind(folder, f"{root}{folder}")
    count, size = _measure(root)
    total = int(size * 1.05) + count * 512 + _SLACK_BYTES
    options = ["-N", str(count + count // 20 + 1024), "-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0"]
    _mke2fs(target, total, [*options, "-d", str(root)])


def _stack(layers: Sequence[Path], root: Path) -> None:
    if len(layers) == 1:
        linux.bind(str(layers[0]), str(root))
        return
    lower = ":".join(str(layer) for layer in reversed(layers))
    linux.mount("overlay", str(root), "overlay", linux.MS_RDONLY, f"lowerdir={lower}")


def _measure(root: Path) -> tuple[int, int]:
    """(objects, bytes) of everything below `root`, other mounts included."""
    count = size = 0
    for folder, folders, files in os.walk(root):
        count += len(folders) + len(files)
        for name in files:
            status = os.lstat(os.path.join(folder, name))
            size += -(-status.st_size // _BLOCK) * _BLOCK
        size += len(folders) * _BLOCK
    return count, size


def make_blank(target: Path, size: int) -> None:
    """An empty writable disk of `size` bytes; complete or not there at all."""
    _require_mke2fs()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _mke2fs(partial, size - RECORD_BYTES, ["-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0"])
        os.truncate(partial, size)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def _mke2fs(target: Path, size: int, options: list[str]) -> None:
    blocks = -(-size // _BLOCK)
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-O", _FEATURES, *options]
    done = subprocess.run([*command, str(target), str(blocks)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeFailure(f"mke2fs could not make {target.name}: {done.stderr.strip()}")


def _require_mke2fs() -> None:
    if shutil.which("mke2fs") is None:
        raise Unsupported(
            "mke2fs is not installed, which makes the disks of virtual machines",
            code=Code.HOST_UNSUPPORTED,
            hint="apt-get install e2fsprogs",
        )


def copy(source: Path, target: Path) -> None:
    """A copy that takes no more room than the source: what was never written stays so."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        for start, end in extents(old.fileno(), size):
            os.lseek(old.fileno(), start, os.SEEK_SET)
            os.lseek(new.fileno(), start, os.SEEK_SET)
            _copy_range(old.fileno(), new.fileno(), end - start)


def extents(file: int, size: int) -> list[tuple[int, int]]:
    found = []
    place = 0
    while place < size:
        try:
            start = os.lseek(file, place, os.SEEK_DATA)
        except OSError:  # nothing but holes up to the end
            break
        place = os.lseek(file, start, os.SEEK_HOLE)
        found.append((start, place))
    return found


def _copy_range(old: int, new: int, left: int) -> None:
    while left > 0:
        done = os.sendfile(new, old, None, min(left, _COPY))
        if done == 0:
            raise RuntimeFailure("a disk ended while it was copied")
        left -= done


def read_record(disk: Path) -> bytes:
    """What the guest wrote behind its file system; empty when it wrote nothing."""
    try:
        with disk.open("rb") as file:
            file.seek(-RECORD_BYTES, os.SEEK_END)
            return file.read(_BLOCK).rstrip(b"\0")
    except FileNotFoundError:
        return b""
