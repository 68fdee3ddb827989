# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The guest's kernel: Debian's kernel for clouds, unpacked from its package.

<folder>/<release>/vmlinuz      the kernel as distributed, compressed
                  /vmlinux      the same, uncompressed, once a virtual machine monitor needed that
                  /modules/     the drivers that the guest loads, and a file with their order
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from casulo.images import daemon
from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.runtimes.microvm import bzimage, debian

WANTED = (
    "virtio_mmio", "virtio_blk", "failover", "net_failover", "virtio_net", "virtio_console", "overlay",
    "virtio-rng", "fuse", "tun", "vmw_vsock_virtio_transport",
)  # fmt: skip
"""Drivers in the order in which the guest loads them; each comes after those that it needs."""

ORDER = "order"
HEAD = "vmlinuz.head"
_HEAD_BYTES = 64 << 10
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel."""

    path: Path

    @property
    def release(self) -> str:
        """Its full version."""
        return self.path.name

    @property
    def compressed(self) -> Path:
        """As QEMU boots it."""
        return self.path / "vmlinuz"

    @property
    def uncompressed(self) -> Path:
        """As Firecracker boots it; made when it is asked for the first time."""
        path = self.path / "vmlinux"
        if not path.exists():
            partial = path.with_name(f"vmlinux.{os.getpid()}")
            partial.write_bytes(bzimage.extract(self.compressed.read_bytes()))
            partial.rename(path)
        return path

    def has(self, driver: str) -> bool:
        """Whether it was unpacked with this driver."""
        return (self.modules / f"{driver}.ko").exists()

    @property
    def modules(self) -> Path:
        """The folder of drivers."""
        return self.path / "modules"


def find(folder: Path) -> Kernel:
    """The newest kernel below `folder`; Unsupported says how to get one."""
    found = sorted(folder.glob(f"*/modules/{ORDER}"), key=lambda path: _numbers(path.parts[-3]))
    if found:
        return Kernel(found[-1].parent.parent)
    raise Unsupported(
        f"there is no kernel for virtual machines in {folder}",
        code=Code.HOST_UNSUPPORTED,
        hint="run `osb microvm setup`, which fetches Debian's",
    )


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def fetch(folder: Path) -> Kernel:
    """Get the package with apt and unpack it. RuntimeFailure carries what apt said."""
    meta = f"linux-image-cloud-{daemon.host_architecture()}"
    with tempfile.TemporaryDirectory() as place:
        listed = _apt(["apt-cache", "depends", meta], place)
        names = re.findall(r"Depends: (linux-image-\S+)", listed)
        if not names:
            raise RuntimeFailure(f"apt knows no package {meta}", hint="run `apt-get update` first")
        _apt(["apt-get", "download", names[0]], place)
        package = next(Path(place).glob("*.deb"))
        return unpack(package, folder)


def _apt(command: list[str], place: str) -> str:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600)
    except FileNotFoundError as error:
        raise Unsupported(
            "this machine has no apt to get the kernel with",
            code=Code.HOST_UNSUPPORTED,
            hint="give `osb microvm setup` the path of a linux-image-*-cloud-*.deb of Debian",
        ) from error
    if done.returncode != 0:
        raise RuntimeFailure(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def unpack(package: Path, folder: Path) -> Kernel:
    """The kernel of `package` below `folder`; complete or not there at all."""
    found = dict(debian.files(package, _is_wanted))
    images = [name for name in found if name.startswith("boot/vmlinuz-")]
    if not images:
        raise Unsupported(f"{package.name} holds no kernel", code=Code.HOST_UNSUPPORTED)
    release = images[0].removeprefix("boot/vmlinuz-")
    drivers = {Path(name).stem: content for name, content in found.items() if name.endswith(".ko")}
    kernel = Kernel(folder / release)
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        _write(Kernel(partial), found[images[0]], drivers)
        shutil.rmtree(kernel.path, ignore_errors=True)
        partial.chmod(0o755)
        partial.rename(kernel.path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return kernel


def _is_wanted(name: str) -> bool:
    return name.startswith("boot/vmlinuz-") or (name.startswith("lib/modules/") and name.endswith(".ko"))


def _write(kernel: Kernel, image: bytes, drivers: dict[str, bytes]) -> None:
    kernel.compressed.write_bytes(image)
    kernel.compressed.with_name(HEAD).write_bytes(image[:_HEAD_BYTES])
    kernel.modules.mkdir()
    order = load_order(drivers)
    for name in order:
        (kernel.modules / f"{name}.ko").write_bytes(drivers[name])
    (kernel.modules / ORDER).write_text("".join(f"{name}.ko\n" for name in order))


def load_order(drivers: dict[str, bytes], wanted: tuple[str, ...] = WANTED) -> list[str]:
    """The wanted drivers that there are, and what they need, each after what it needs."""
    by_name = {name.replace("-", "_"): name for name in drivers}
    order: list[str] = []

    def add(name: str) -> None:
        file = by_name.get(name.replace("-", "_"))
        if file is None or file in order:  # not there: it is built into the kernel
            return
        match = _DEPENDS.search(drivers[file])
        for needed in match[1].decode().split(",") if match else []:
            add(needed)
        order.append(file)

    for name in wanted:
        add(name)
    return order
