# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The guest's initial memory disk: the daemon as its first program, and the drivers that it loads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from casulo.runtimes.microvm import cpio
from casulo.runtimes.microvm.kernel import ORDER, Kernel

_FOLDERS = ("dev", "image", "modules", "own", "proc", "root", "sys")
_DEVICES = {"dev/console": (5, 1), "dev/null": (1, 3)}
"""What a program needs to be started at all; the rest comes with the kernel's own file system."""


def build(kernel: Kernel, execd: Path, store: Path) -> Path:
    """The file below `store`, named by its content; made unless it is there."""
    members = [*_members(kernel, execd)]
    digest = hashlib.sha256()
    for member in members:
        digest.update(f"{member.name} {member.mode} {len(member.content or b'')}\n".encode())
        digest.update(member.content or b"")
    path = store / f"initramfs-{digest.hexdigest()[:16]}"
    if not path.exists():
        store.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        with partial.open("wb") as file:
            cpio.write(file, members)
        partial.rename(path)
    return path


def _members(kernel: Kernel, execd: Path) -> Iterator[cpio.Member]:
    for name in _FOLDERS:
        yield cpio.Member(name)
    for name, device in _DEVICES.items():
        yield cpio.Member(name, mode=0o600, device=device)
    yield cpio.Member("init", execd.read_bytes())
    order = (kernel.modules / ORDER).read_text()
    yield cpio.Member(f"modules/{ORDER}", order.encode(), 0o644)
    for name in order.split():
        yield cpio.Member(f"modules/{name}", (kernel.modules / name).read_bytes(), 0o644)
