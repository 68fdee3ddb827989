# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Everything that a server and its sandboxes can leave on a machine, counted."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Traces:
    """One count of the machine; two of them are compared."""

    mounts: int
    namespaces: int
    interfaces: int
    cgroups: int
    processes: int
    server_descriptors: int
    server_threads: int
    folders: int

    def growth(self, later: Traces) -> dict[str, int]:
        """How much more of each kind there is later."""
        now = asdict(later)
        return {f"{kind}_more": now[kind] - count for kind, count in asdict(self).items()}


def count(server_pid: int, data_dir: Path) -> Traces:
    """Count now. Kernel threads, and processes with nothing to do with us, are left out."""
    server = PROC / str(server_pid)
    ours = sandbox_processes() | descendants(server_pid)
    return Traces(
        mounts=len((server / "mountinfo").read_text().splitlines()),
        namespaces=len(namespaces()),
        interfaces=len(socket.if_nameindex()),
        cgroups=sum(1 for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()),
        processes=len(ours),
        server_descriptors=sum(1 for _ in (server / "fd").iterdir()),
        server_threads=sum(1 for _ in (server / "task").iterdir()),
        folders=sum(1 for path in data_dir.rglob("*") if path.is_dir()),
    )


def sandbox_processes() -> set[int]:
    """Processes that live in another pid namespace than this one."""
    own = (PROC / "self/ns/pid").readlink()
    return {pid for pid in pids() if (link := _link(pid, "ns/pid")) is not None and link != own}


def descendants(pid: int) -> set[int]:
    """Children of `pid`, their children and so on."""
    parents = {child: _parent(child) for child in pids()}
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def namespaces() -> set[str]:
    """Every namespace that a process is in or that is mounted somewhere."""
    kinds = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
    held = {str(link) for pid in pids() for kind in kinds if (link := _link(pid, f"ns/{kind}"))}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = {line.split()[3] for line in mounts if " - nsfs " in line}
    return held | mounted


def pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]


def executable(pid: int) -> str:
    """Path of the program, empty when the process is gone."""
    return str(_link(pid, "exe") or "")


def proportional_kib(pid: int) -> int:
    """Memory of a process, shared pages divided among their users."""
    try:
        rollup = (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def _link(pid: int, name: str) -> Path | None:
    try:
        return (PROC / str(pid) / name).readlink()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _parent(pid: int) -> int:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[1])
