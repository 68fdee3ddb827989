# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Everything that one server and its sandboxes can leave on a machine, counted.

All of it is named after the server's instance, so that other servers on the machine do not disturb.
Whoever counts should see once that a living sandbox is counted: a rule that sees nothing proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Traces:
    """One count; two of them are compared."""

    mounts: int
    namespaces: int
    interfaces: int
    cgroups: int
    processes: int
    server_descriptors: int
    server_threads: int
    folders: int
    packet_rules: int
    plain_processes: int

    def growth(self, later: Traces) -> dict[str, int]:
        """How much more of each kind there is later."""
        now = asdict(later)
        return {f"{kind}_more": now[kind] - count for kind, count in asdict(self).items()}


def count(server_pid: int, data_dir: Path) -> Traces:
    """Count what belongs to the server with this data folder."""
    instance = instance_of(data_dir)
    run = Path("/run/casulo") / instance
    server = PROC / str(server_pid)
    # Dead children of the server are its leak; those of the machine's first process are not.
    ours = sandbox_processes(data_dir) | descendants(server_pid)
    return Traces(
        mounts=sum(_mounts(pid, (str(data_dir), str(run))) for pid in (server_pid, os.getpid())),
        namespaces=len(namespaces(ours)) + sum(1 for _ in run.glob("netns/*")),
        interfaces=sum(instance in name for _, name in socket.if_nameindex()),
        cgroups=sum(
            len(_folders(Path(top) / "casulo" / name))
            for top in _folders(CGROUPS)
            for name in (instance, f"{instance}m")
        ),
        processes=len(ours),
        server_descriptors=sum(1 for _ in (server / "fd").iterdir()),
        server_threads=sum(1 for _ in (server / "task").iterdir()),
        folders=len(_folders(data_dir)) + len(_folders(run)),
        packet_rules=_packet_rules(instance),
        plain_processes=sum(1 for pid in pids() if _writes_below(pid, data_dir / "fake")),
    )


def _packet_rules(instance: str) -> int:
    """Lines of all tables of the packet filter that are this server's."""
    if shutil.which("nft") is None:
        return 0
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, timeout=30)
    lines = 0
    for table in (line.split() for line in listed.stdout.splitlines() if f"casulo_{instance}" in line):
        told = subprocess.run(["nft", "list", *table], capture_output=True, text=True, timeout=30)
        lines += len(told.stdout.splitlines())
    return lines


def _writes_below(pid: int, place: Path) -> bool:
    """Daemons of the fake runtime have no control group; they say what goes wrong into their folder."""
    return str(_link(pid, "fd/2") or "").startswith(f"{place}/")


def instance_of(data_dir: Path) -> str:
    """The six digits that are in every name which the server with this data folder gives."""
    return hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:6]


def sandbox_processes(data_dir: Path) -> set[int]:
    """Living processes in the sandboxes of the server with this data folder."""
    groups = [f"/casulo/{instance_of(data_dir)}{kind}/" for kind in ("", "m")]
    return {pid for pid in pids() if any(g in _read(pid, "cgroup") for g in groups) and not _is_dead(pid)}


def descendants(pid: int) -> set[int]:
    """Children of `pid`, their children and so on."""
    parents = {child: _parent(child) for child in pids()}
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def namespaces(members: set[int]) -> set[str]:
    """Namespaces that these processes are in and this one is not."""
    kinds = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
    held = {str(link) for pid in members for kind in kinds if (link := _link(pid, f"ns/{kind}"))}
    return held - {str(_link(os.getpid(), f"ns/{kind}")) for kind in kinds}


def pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]


def executable(pid: int) -> str:
    """Path of the program, empty when the process is gone."""
    return str(_link(pid, "exe") or "")


def proportional_kib(pid: int) -> int:
    """Memory of a process, shared pages divided among their users."""
    rollup = _read(pid, "smaps_rollup")
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def _link(pid: int, name: str) -> Path | None:
    try:
        return (PROC / str(pid) / name).readlink()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _parent(pid: int) -> int:
    text = _read(pid, "stat")
    return int(text.rpartition(")")[2].split()[1]) if text else 0


def _is_dead(pid: int) -> bool:
    return _read(pid, "stat").rpartition(")")[2].strip()[:1] in ("", "Z", "X")


def _mounts(pid: int, places: tuple[str, ...]) -> int:
    return sum(any(place in line for place in places) for line in _read(pid, "mountinfo").splitlines())


def _folders(top: Path) -> list[str]:
    return [folder for folder, _, _ in os.walk(top)]


def _read(pid: int, name: str) -> str:
    """A file of /proc, empty when the process is gone."""
    try:
        return (PROC / str(pid) / name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def daemon_peak_kib(data_dir: Path, sandbox_id: str) -> int:
    """The largest resident size that a local sandbox's daemon has had, in KiB."""
    pid = int((data_dir / "sandboxes" / sandbox_id / "pid").read_text())
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
