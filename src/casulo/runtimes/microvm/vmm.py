# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the runtime needs of a virtual machine monitor.

A driver keeps nothing in memory about a machine: everything is found again through the machine's
folder, so that another server process can go on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from casulo.runtimes.microvm.wire import Wire

STATE = "state"
MEMORY = "memory"
"""The files of a machine that was saved."""


@dataclass(frozen=True)
class Hardware:
    """What a frozen machine can only be restored on."""

    vcpus: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Sockets:
    """Where the lines of a machine are, each a file in its folder.

    `jail` is for monitors that are given files by name: a folder that they take for the root of everything.
    """

    folder: Path
    jail: Path | None = None

    @property
    def control(self) -> Path:
        """Where the monitor takes commands."""
        return self.folder / "control"

    @property
    def link(self) -> Path:
        """The line to the daemon."""
        return self.folder / "link"

    @property
    def output(self) -> Path:
        """What the entrypoint prints."""
        return self.folder / "output"

    @property
    def console(self) -> Path:
        """What the kernel and the daemon print."""
        return self.folder / "console"


@dataclass(frozen=True)
class Plan:
    """One machine to start. Descriptors are inherited by the monitor's process.

    `memory` is a file that is the machine's memory: shared with it, or with `private_memory` only what
    the memory is at first. None is plain memory. `frozen` is a folder that `save` filled, to begin from,
    and `incoming` the file `state` in it. `tap` is open, and called `interface`.
    """

    hardware: Hardware
    kernel: Path
    initramfs: Path
    image_disk: Path
    own_disk: Path
    sockets: Sockets
    log: Path
    tap: int
    memory: int | None = None
    private_memory: bool = False
    incoming: int | None = None
    frozen: Path | None = None
    interface: str = ""
    uid: int = 0


@dataclass(frozen=True)
class Process:
    """The monitor's process, named for good by number and start time."""

    pid: int
    started: int


class Vmm(Protocol):
    """One monitor program. Failures are RuntimeFailure with what the monitor said."""

    name: str
    takes_memory: bool
    """Whether memory is a file that the monitor maps; else `save` writes a file that `start` reads."""
    redials: bool
    """Whether lines break when a machine is saved, and open only while its guest runs."""

    @property
    def accelerator(self) -> str:
        """`kvm`, or `tcg` where software emulates the processor."""

    @property
    def fingerprint(self) -> str:
        """Program, version, processor: what frozen machines depend on besides their hardware."""

    async def start(self, plan: Plan) -> Process:
        """Start the machine: running when it boots, standing still when it begins from a state."""

    async def load(self, plan: Plan) -> None:
        """Take the incoming state in; the machine then stands still where it was frozen."""

    async def go(self, sockets: Sockets) -> None:
        """Let the machine run."""

    async def halt(self, sockets: Sockets) -> None:
        """Let the machine stand still."""

    async def runs(self, sockets: Sockets) -> bool:
        """Whether the guest runs, rather than stands still."""

    async def save(self, sockets: Sockets, target: Path) -> None:
        """Write a halted machine's state to the file `state` in a folder.

        Without `takes_memory` the memory is written as well, to the file `memory` there.
        """

    async def dial(self, sockets: Sockets, line: str) -> Wire:
        """Connect to the guest's `link` or `output`, or to `console`; OSError when the monitor is gone."""
