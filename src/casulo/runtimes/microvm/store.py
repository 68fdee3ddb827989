# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What all machines of this host share: kernels, initial memory disks, image disks, blank disks.

Each file is named by what it was made from, made once, and never changed. Servers may share the
folder: whoever makes something holds a lock on its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from casulo.runtimes.microvm import disks, initramfs, kernel
from casulo.runtimes.microvm.kernel import Kernel

_SOFTWARE = (Path("/var/lib/dpkg/status"), Path("/lib/apk/db/installed"), Path("/var/lib/rpm"))


class Store:
    """The folder. Methods block; call them from worker threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def kernels(self) -> Path:
        """Where unpacked kernels are."""
        return self._folder / "kernels"

    @property
    def templates(self) -> Path:
        """Where frozen machines are."""
        return self._folder / "templates"

    @property
    def images(self) -> Path:
        """Where the disks of images are."""
        return self._folder / "images"

    @property
    def initramfses(self) -> Path:
        """Where initial memory disks are."""
        return self._folder / "initramfs"

    @property
    def blanks(self) -> Path:
        """Where empty disks are."""
        return self._folder / "blank"

    def prepare(self) -> None:
        """Make the folders."""
        for path in (self.kernels, self.templates, self._folder / "locks", self._users):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def _users(self) -> Path:
        return self._folder / "users"

    def register(self, data: Path) -> None:
        """Have others know whose machines and snapshots may need what is here."""
        name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
        (self._users / name).write_bytes(os.fsencode(data))

    def users(self) -> list[Path]:
        """The data directories of the servers that use this folder. Those that are gone are forgotten."""
        found = []
        for entry in self._users.iterdir():
            data = Path(os.fsdecode(entry.read_bytes()))
            if data.is_dir():
                found.append(data)
            else:
                entry.unlink(missing_ok=True)
        return found

    def kernel(self) -> Kernel:
        """The newest kernel."""
        return kernel.find(self.kernels)

    def initramfs(self, found: Kernel, execd: Path) -> Path:
        """The initial memory disk with this daemon."""
        return initramfs.build(found, execd, self.initramfses)

    def image(self, tree: disks.Tree) -> Path:
        """The disk of an image."""
        path = self.images / f"{_key(tree)}.ext4"
        self.once(path, lambda: disks.make_image(tree, path))
        os.utime(path)
        return path

    def blank(self, size: int) -> Path:
        """An empty writable disk."""
        path = self.blanks / f"{size}.ext4"
        self.once(path, lambda: disks.make_blank(path, size))
        return path

    def once(self, path: Path, make: Callable[[], None]) -> None:
        """Call `make` unless `path` is there, also when other servers want it at the same moment."""
        if path.exists():
            return
        with self.locked(path.name):
            if not path.exists():
                make()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of this name."""
        with (self._folder / "locks" / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sweep(self) -> None:
        """Remove what killed servers were making. Who is at it now holds the lock of the name."""
        for folder in (self.images, self.blanks, self.templates):
            for entry in folder.glob(".*"):
                self._remove_half(entry, entry.name[1:].rpartition(".")[0])
        for entry in self.initramfses.glob("initramfs-*.*"):
            if not Path("/proc", entry.suffix[1:]).exists():
                entry.unlink(missing_ok=True)

    def _remove_half(self, entry: Path, name: str) -> None:
        with (self._folder / "locks" / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            remove(entry)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it. Idempotent."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _key(tree: disks.Tree) -> str:
    """Layers are named by their content. Of the machine's own programs the package manager's state is
    taken for it, since reading them all takes longer than anything that is done with them."""
    facts = [f"{layer.parent.name}/{layer.name}" for layer in tree.layers]
    for folder in tree.binds:
        facts += [
            f"{entry.path} {entry.stat(follow_symlinks=False).st_mtime_ns}" for entry in _entries(folder)
        ]
    if tree.binds:
        facts += [f"{path} {path.stat().st_mtime_ns}" for path in _SOFTWARE if path.exists()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
