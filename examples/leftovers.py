# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Counts what one server has on this machine, so that "nothing is left" can be shown instead of claimed.

Everything the local runtime makes carries the name of its server's instance, so other servers do not disturb.
"""

from __future__ import annotations

import os
import socket
from dataclasses import astuple, dataclass
from pathlib import Path

from casulo.runtimes.local.host import instance_of

PROC, CGROUPS, RUN = Path("/proc"), Path("/sys/fs/cgroup"), Path("/run/casulo")


@dataclass(frozen=True)
class Leftovers:
    """One count of everything."""

    mounts: int
    network_namespaces: int
    network_links: int
    control_groups: int
    processes: int
    sandbox_directories: int

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(astuple(self))

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in vars(self).items())


def look(data: Path) -> Leftovers:
    """Count what belongs to the server with this data directory."""
    instance = instance_of(data)
    groups = [group for top in CGROUPS.rglob("casulo") for group in _below(top / instance)]
    return Leftovers(
        mounts=sum(
            str(data) in line or f"{RUN}/{instance}" in line
            for line in (PROC / "self/mountinfo").read_text().splitlines()
        ),
        network_namespaces=sum(1 for _ in (RUN / instance).glob("netns/*")),
        network_links=sum(instance in name for _, name in socket.if_nameindex()),
        control_groups=len(groups),
        processes=len(_members(instance)),
        sandbox_directories=len(_below(data / "sandboxes")[1:]),
    )


def _below(top: Path) -> list[str]:
    return [folder for folder, _, _ in os.walk(top)]


def _members(instance: str) -> list[int]:
    """Processes in control groups of that instance."""
    found = []
    for process in PROC.iterdir():
        if process.name.isdigit():
            try:
                groups = (process / "cgroup").read_text()
            except OSError:  # it ended while we looked
                continue
            if f"/casulo/{instance}/" in groups:
                found.append(int(process.name))
    return found
