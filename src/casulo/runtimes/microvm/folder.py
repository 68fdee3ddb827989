# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What one machine has on disk. All of it is found again by the machine's name.

<data>/microvms/<name>/disk           what it wrote
                      /slot           number of its network slot
                      /environment    its variables, without those of its request
                      /policy         its network policy
                      /process        the monitor's process
                      /machine.json   what it can be restored with
                      /frozen/        while it is paused: processor, devices and memory
                      /jail/          what a monitor sees that is given files by name
                      /entrypoint.log, console.log, monitor.log
/run/casulo/<instance>/vm/<name>/     its sockets
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from casulo.runtimes.microvm.vmm import Hardware, Process, Sockets


@dataclass(frozen=True)
class Parts:
    """The files that a machine is started from, and what frozen ones depend on besides."""

    kernel: Path
    initramfs: Path
    image_disk: Path
    hardware: Hardware
    fingerprint: str

    def encode(self) -> str:
        """As JSON."""
        return json.dumps({**asdict(self), **{name: str(getattr(self, name)) for name in _PATHS}})

    @classmethod
    def decode(cls, text: str) -> Parts:
        """From JSON; ValueError, KeyError or TypeError when it is none of ours."""
        body = json.loads(text)
        paths = {name: Path(body[name]) for name in _PATHS}
        return cls(**paths, hardware=Hardware(**body["hardware"]), fingerprint=body["fingerprint"])


_PATHS = ("kernel", "initramfs", "image_disk")


@dataclass(frozen=True)
class Folder:
    """The places of one machine."""

    path: Path
    sockets: Sockets

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.path.name

    @property
    def disk(self) -> Path:
        """Its writable disk."""
        return self.path / "disk"

    @property
    def slot(self) -> Path:
        """Number of its network slot, written before it is used."""
        return self.path / "slot"

    @property
    def policy(self) -> Path:
        """Its network policy, if it is under one; written before it holds."""
        return self.path / "policy"

    @property
    def environment(self) -> Path:
        """The variables of its processes but for those that its request gave."""
        return self.path / "environment"

    @property
    def frozen(self) -> Path:
        """What it was when it was paused; there only while it is."""
        return self.path / "frozen"

    @property
    def entrypoint_log(self) -> Path:
        """The entrypoint's output, capped."""
        return self.path / "entrypoint.log"

    @property
    def console_log(self) -> Path:
        """What kernel and daemon printed, capped."""
        return self.path / "console.log"

    @property
    def monitor_log(self) -> Path:
        """What the monitor printed."""
        return self.path / "monitor.log"

    def create(self, parts: Parts) -> None:
        """Make the folders; there must be none of that name."""
        self.path.mkdir(mode=0o700, parents=True)
        self.sockets.folder.mkdir(mode=0o700, parents=True)
        (self.path / "machine.json").write_text(parts.encode())

    def prepare_again(self) -> None:
        """Make what was lost when the host was started anew, which leaves nothing below /run."""
        self.sockets.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def parts(self) -> Parts:
        """What it can be restored with."""
        return Parts.decode((self.path / "machine.json").read_text())

    def index(self) -> int | None:
        """Number of its slot; None when it took none yet, or wrote it half."""
        try:
            return int(self.slot.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def note(self, process: Process) -> None:
        """Remember the monitor's process."""
        (self.path / "process").write_text(f"{process.pid} {process.started}")

    def process(self) -> Process | None:
        """The remembered process, which may have ended; None when there was none."""
        try:
            pid, started = (self.path / "process").read_text().split()
            return Process(int(pid), int(started))
        except (FileNotFoundError, ValueError):
            return None

    def rename(self, other: Folder) -> None:
        """Become the machine `other`."""
        self.sockets.folder.rename(other.sockets.folder)
        self.path.rename(other.path)

    def remove(self) -> None:
        """Remove everything. Idempotent."""
        for path in (self.sockets.folder, self.path):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)


@dataclass(frozen=True)
class Folders:
    """The folders of all machines of one server."""

    data: Path
    run: Path

    def of(self, name: str) -> Folder:
        """The folder of the machine with this name."""
        return Folder(self.data / name, Sockets(self.run / name, self.data / name / "jail"))

    def prepare(self) -> None:
        """Make the parents."""
        for path in (self.data, self.run):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def release(self) -> None:
        """Remove what is only there while a server runs; when there is no machine left."""
        for name in ("vm", "nowhere", "taps"):
            shutil.rmtree(self.run.parent / name, ignore_errors=True)
        with contextlib.suppress(OSError):  # another runtime of this server has something there
            self.run.parent.rmdir()

    def names(self) -> set[str]:
        """Names of all machines with a trace here."""
        return {entry.name for parent in (self.data, self.run) for entry in parent.iterdir()}
