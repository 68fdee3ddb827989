# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Control groups of one sandbox on cgroup v1, hybrid and v2 hosts.

We make the groups ourselves instead of leaving it to the OCI runtime: the layout is then the same
under every runtime and every cgroup version, and the daemon can be kept out of the limit on
processes, so that a fork bomb never takes the ping and the kill away.

    v2       <root>/casulo/<instance>/<id>          memory, cpu, pids = limit + reserve
                                     /daemon        the execution daemon
                                     /run           pids = limit; delegated, one child per command
    v1       <controller>/casulo/<instance>/<id>    memory, cpu, pids = limit + reserve
             pids/casulo/<instance>/<id>/user       pids = limit
    hybrid   as v1, and in the v2 tree (which has no controllers then) the same <id>, daemon, run
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.model.sandbox import Resources

DAEMON_RESERVE = 64
"""Processes and threads beyond the sandbox's limit that only the daemon can use."""

CPU_PERIOD_US = 100_000
_LIMITING = ("memory", "pids", "cpu")
_V1_WANTED = (*_LIMITING, "cpuacct", "freezer")


@dataclass(frozen=True)
class Layout:
    """Where this host mounts its cgroup trees. `v1` maps controllers to mount points."""

    v1: dict[str, Path]
    v2: Path | None

    @property
    def mode(self) -> str:
        """`v1`, `hybrid` or `v2`; the mode is v2 only when v2 holds the limiting controllers."""
        if not self.v1:
            return "v2"
        return "hybrid" if self.v2 else "v1"


def parse_mounts(mountinfo: str) -> Layout:
    """Read a Layout from the text of /proc/self/mountinfo."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split()[4])
        if kind == "cgroup2":
            v2 = v2 or point
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(_V1_WANTED):
                v1.setdefault(controller, point)
    return Layout({} if not set(_LIMITING) & v1.keys() else v1, v2)


def detect() -> Layout:
    """The Layout of this host; Unsupported when a limiting controller is missing."""
    layout = parse_mounts(Path("/proc/self/mountinfo").read_text())
    have = set(layout.v1)
    if layout.mode == "v2" and layout.v2:
        have = set((layout.v2 / "cgroup.controllers").read_text().split())
    missing = [name for name in _LIMITING if name not in have]
    if missing:
        raise Unsupported(
            f"the cgroup controllers {', '.join(missing)} are not available on this host",
            code=Code.HOST_UNSUPPORTED,
            hint="boot with them enabled (kernel argument cgroup_enable=memory), or mount them",
        )
    return layout


@dataclass(frozen=True)
class Group:
    """The groups of one sandbox. `name` is the path below each mount, e.g. `casulo/3f2a/<id>`."""

    layout: Layout
    name: str

    @cached_property
    def v1_paths(self) -> dict[str, Path]:
        """This sandbox's directory in each v1 tree that is needed: v2 freezes without a controller."""
        wanted = [name for name in self.layout.v1 if name != "freezer" or self.layout.v2 is None]
        return {name: self.layout.v1[name] / self.name for name in wanted}

    @cached_property
    def v2_path(self) -> Path | None:
        """This sandbox's directory in the v2 tree."""
        return self.layout.v2 / self.name if self.layout.v2 else None

    def create(self, resources: Resources, owner: int) -> None:
        """Make the groups with their limits; `owner` is the host uid of the sandbox's root."""
        for path in {*self.v1_paths.values()}:
            path.mkdir(parents=True, exist_ok=True)
        if self.v2_path:
            self._create_v2(self.v2_path, owner)
        for path, value in self._limits(resources):
            _write(path, value)

    def _create_v2(self, path: Path, owner: int) -> None:
        if self.layout.mode == "v2":
            path.parent.mkdir(parents=True, exist_ok=True)
            _hand_down(path.parent, {*_LIMITING})
        for folder in (path, path / "daemon", path / "run"):
            folder.mkdir(parents=True, exist_ok=True)
        # The kernel asks for write access at the common ancestor of both ends of a move.
        for delegated in (path / "cgroup.procs", path / "run", path / "run" / "cgroup.procs"):
            os.chown(delegated, owner, owner)

    def _limits(self, resources: Resources) -> Iterable[tuple[Path, str]]:
        quota = max(1000, resources.cpu_millis * CPU_PERIOD_US // 1000)
        memory = str(resources.memory_bytes)
        outer_pids = str(resources.pids + DAEMON_RESERVE)
        if self.layout.mode == "v2" and self.v2_path:
            yield self.v2_path / "cpu.max", f"{quota} {CPU_PERIOD_US}"
            yield self.v2_path / "memory.max", memory
            if (self.v2_path / "memory.swap.max").exists():
                yield self.v2_path / "memory.swap.max", "0"
            yield self.v2_path / "pids.max", outer_pids
            return
        v1 = self.v1_paths
        yield v1["cpu"] / "cpu.cfs_period_us", str(CPU_PERIOD_US)
        yield v1["cpu"] / "cpu.cfs_quota_us", str(quota)
        yield v1["memory"] / "memory.limit_in_bytes", memory
        if (v1["memory"] / "memory.memsw.limit_in_bytes").exists():
            yield v1["memory"] / "memory.memsw.limit_in_bytes", memory
        yield v1["pids"] / "pids.max", outer_pids
        (v1["pids"] / "user").mkdir(exist_ok=True)
        yield v1["pids"] / "user" / "pids.max", str(resources.pids)

    def entrances(self) -> list[Path]:
        """The `cgroup.procs` files that a process is written to."""
        paths = [*self.v1_paths.values()]
        if self.v2_path:
            paths.append(self.v2_path if self.layout.mode == "v2" else self.v2_path / "daemon")
        return [path / "cgroup.procs" for path in dict.fromkeys(paths)]

    def own_entrances(self) -> tuple[list[Path], Path | None]:
        """How a process of one thread comes in: v1 files to which it writes 0, and the v2 group to begin in.

        To move one thread of a v1 tree, the kernel need not hold up every other process of the machine,
        as it does to move whole processes.
        """
        files = [path / "tasks" for path in dict.fromkeys(self.v1_paths.values())]
        folder = self.v2_path and (self.v2_path if self.layout.mode == "v2" else self.v2_path / "daemon")
        return files, folder

    def settle(self, pid: int, resources: Resources) -> None:
        """On v2, move the started daemon aside and limit what it will start.

        A group may not hold processes and hand controllers down at once, and the container's
        cgroup namespace has to begin at the sandbox's own group: hence after the start.
        """
        if self.layout.mode != "v2" or not self.v2_path:
            return
        _write(self.v2_path / "daemon" / "cgroup.procs", str(pid))
        _write(self.v2_path / "cgroup.subtree_control", "+pids")
        _write(self.v2_path / "run" / "pids.max", str(resources.pids))

    def visible(self) -> dict[str, Path]:
        """What is shown, read-only, inside the sandbox: path inside to directory on the host."""
        if self.layout.mode == "v2" and self.v2_path:
            return {"/sys/fs/cgroup": self.v2_path}
        shown = {name: path for name, path in self.v1_paths.items() if name != "freezer"}
        return {f"/sys/fs/cgroup/{name}": path for name, path in shown.items()}

    def command_directory(self) -> Path | None:
        """The delegated directory in which the daemon makes one group per command."""
        return self.v2_path / "run" if self.v2_path else None

    def user_tasks(self) -> Path | None:
        """The v1 file that a thread enters to be under the sandbox's limit on processes."""
        if self.layout.mode == "v2":
            return None
        return self.v1_paths["pids"] / "user" / "tasks"

    def freeze(self, frozen: bool, timeout_seconds: float = 10) -> None:
        """Freeze or thaw every process; returns when the kernel says that it is so."""
        if self.v2_path:
            _write(self.v2_path / "cgroup.freeze", "1" if frozen else "0")
            want = f"frozen {int(frozen)}"
            _wait_for(self.v2_path / "cgroup.events", want, timeout_seconds)
        else:
            state = self.v1_paths["freezer"] / "freezer.state"
            _write(state, "FROZEN" if frozen else "THAWED")
            _wait_for(state, "FROZEN" if frozen else "THAWED", timeout_seconds)

    def is_frozen(self) -> bool:
        """Whether the group was frozen; False when it does not exist."""
        try:
            if self.v2_path:
                return linux.read_file(self.v2_path / "cgroup.freeze").strip() == "1"
            return (self.v1_paths["freezer"] / "freezer.state").read_text().strip() != "THAWED"
        except FileNotFoundError:
            return False

    def memory_bytes(self) -> int:
        """How much memory its processes hold, without what the kernel can drop at any time."""
        v2 = self.v2_path if self.layout.mode == "v2" else None
        folder = v2 or self.v1_paths["memory"]
        usage = folder / ("memory.current" if v2 else "memory.usage_in_bytes")
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        names = ("active_file", "inactive_file") if v2 else ("total_active_file", "total_inactive_file")
        return int(usage.read_text()) - sum(int(counts.get(name, 0)) for name in names)

    def was_out_of_memory(self) -> bool:
        """Whether the kernel ever ended a process of the group for passing the memory limit."""
        v2 = self.v2_path if self.layout.mode == "v2" else None
        path = v2 / "memory.events" if v2 else self.v1_paths["memory"] / "memory.oom_control"
        try:
            counts = dict(line.split() for line in path.read_text().splitlines())
        except FileNotFoundError:
            return False
        return counts.get("oom_kill", "0") != "0"

    def kill(self) -> None:
        """SIGKILL every process in the groups, however they are nested or frozen."""
        if self.v2_path and (self.v2_path / "cgroup.kill").exists():
            _write(self.v2_path / "cgroup.kill", "1")
            return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.is_frozen():
            self.freeze(False)

    def processes(self) -> set[int]:
        """Process ids in the groups, descendants included."""
        root = self.v2_path or self.v1_paths["pids"]
        found: set[int] = set()
        for folder, _, _ in os.walk(root):
            with contextlib.suppress(FileNotFoundError):
                found.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
        return found

    def remove(self, timeout_seconds: float = 10) -> None:
        """Kill what is left and delete the groups. Idempotent."""
        self.kill() if self.exists() else None
        deadline = time.monotonic() + timeout_seconds
        for controller, path in self.v1_paths.items():
            _remove_tree(path, ("user",) if controller == "pids" else (), deadline)
        if self.v2_path:
            _remove_tree(self.v2_path, ("daemon", "run"), deadline)

    def exists(self) -> bool:
        """Whether any of the groups is there."""
        paths = [*self.v1_paths.values(), *([self.v2_path] if self.v2_path else [])]
        return any(path.exists() for path in paths)


def siblings(layout: Layout, parent: str) -> set[str]:
    """Names of all groups below `parent`, in any tree."""
    points = {*layout.v1.values(), *([layout.v2] if layout.v2 else [])}
    folders = [point / parent for point in points]
    return {entry.name for f in folders if f.is_dir() for entry in f.iterdir() if entry.is_dir()}


def remove_empty(parent: str) -> None:
    """Delete the groups `parent` and its own parent where nothing is left below them.

    In every tree of this host: runc makes its groups in all of them.
    """
    for point in mount_points(Path("/proc/self/mountinfo").read_text()):
        for folder in (point / parent, (point / parent).parent):
            with contextlib.suppress(OSError):  # in use by another server, or never made here
                folder.rmdir()


def mount_points(mountinfo: str) -> set[Path]:
    """Where cgroup trees of either version are mounted, by the text of /proc/self/mountinfo."""
    halves = [line.partition(" - ") for line in mountinfo.splitlines()]
    return {Path(left.split()[4]) for left, _, right in halves if right.split()[0] in ("cgroup", "cgroup2")}


def _hand_down(folder: Path, controllers: set[str]) -> None:
    """Enable controllers for the children of `folder`, and of its ancestors before it."""
    control = folder / "cgroup.subtree_control"
    missing = controllers - set(control.read_text().split())
    if not missing:
        return
    if (folder.parent / "cgroup.subtree_control").exists():
        _hand_down(folder.parent, controllers)
    _write(control, " ".join(f"+{name}" for name in sorted(missing)))


def _write(path: Path, value: str) -> None:
    try:
        linux.write_file(path, value, os.O_CREAT)
    except OSError as error:
        raise RuntimeFailure(f"write {value!r} to {path}: {error.strerror}") from error


def _wait_for(path: Path, wanted: str, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while wanted not in path.read_text():
        if time.monotonic() > deadline:
            raise RuntimeFailure(f"{path} did not become {wanted!r} within {timeout_seconds:g} s")
        time.sleep(0.001)


def _remove_tree(path: Path, ours: tuple[str, ...], deadline: float) -> None:
    """The groups that we made ourselves go without a look at the many files of each."""
    try:
        for name in ours:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(f"{path}/{name}")
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:  # commands have groups of their own, or somebody is still on the way out
        _remove_all(path, deadline)


def _remove_all(path: Path, deadline: float) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except FileNotFoundError:
                break
            except OSError as error:
                # A killed process leaves its group a moment after it is gone for its parent.
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise RuntimeFailure(f"remove cgroup {folder}: {error.strerror}") from error
                time.sleep(0.001)
