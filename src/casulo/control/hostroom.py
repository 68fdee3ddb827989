# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How much of this machine is left, and whether that is enough to start one more sandbox."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Room:
    """What is free: memory and disk in bytes, and how many more processes the kernel allows."""

    memory: int
    disk: int
    pids: int


def look(folder: Path, proc: Path = _PROC) -> Room:
    """What is free now; `folder` is where sandboxes keep their files."""
    disk = os.statvfs(folder)
    return Room(_free_memory(proc), disk.f_bavail * disk.f_frsize, _free_pids(proc))


def shortage(room: Room, least: Room) -> str:
    """What there is too little of, as a sentence; empty when there is enough."""
    for name, free, needed in (
        ("memory", room.memory, least.memory),
        ("disk", room.disk, least.disk),
    ):
        if free < needed:
            return f"the machine has {free >> 20} MiB of free {name}, and {needed >> 20} MiB must stay free"
    if room.pids < least.pids:
        return f"the machine has room for {room.pids} more processes, and {least.pids} must stay free"
    return ""


def _free_memory(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} does not tell MemAvailable")


def _free_pids(proc: Path) -> int:
    kernel = proc / "sys" / "kernel"
    most = min(int((kernel / name).read_text()) for name in ("pid_max", "threads-max"))
    return most - int((proc / "loadavg").read_text().split()[3].partition("/")[2])
