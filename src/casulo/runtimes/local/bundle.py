# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The plan of one container, as an OCI runtime configuration. Pure: nothing is made here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casulo.model.sandbox import Resources
from casulo.runtimes.local import seccomp

DAEMON_PATH = "/opt/opensandbox/execd"
DAEMON_ARGUMENTS = (DAEMON_PATH, "--boot-fd", "0")
ID_RANGE = 65536

CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
    "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip
"""What root inside keeps: file ownership, users, signals. No device nodes, raw sockets, tracing of
other users' processes, or anything administrative."""

NESTING_CAPABILITIES = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE")
"""What the daemon gets on top where it makes isolated sessions, relative to the sandbox's own user
namespace. It keeps them from every other process, and drops the last one after first use."""

GVISOR_CAPABILITIES = (*CAPABILITIES, "CAP_SYS_RESOURCE")
"""What the daemon gets in gVisor, which counts processes by user: this exempts it from the limit. It
is not in the bounding set, so no program that the daemon starts has it."""

ISOLATED_DIR = "/opt/opensandbox/isolated"

_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/bus", "/proc/cmdline", "/proc/diskstats", "/proc/interrupts",
    "/proc/kallsyms", "/proc/keys", "/proc/key-users", "/proc/modules", "/proc/partitions",
    "/proc/sched_debug", "/proc/scsi", "/proc/swaps",
)  # fmt: skip
"""What every user of a host may read, and a sandbox has no business with."""

_MASKED_FROM_ROOT = (
    "/proc/config.gz", "/proc/iomem", "/proc/ioports", "/proc/kcore", "/proc/kmsg", "/proc/kpagecgroup",
    "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/mtrr", "/proc/sysrq-trigger",
    "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
)  # fmt: skip
"""What only the host's root may open: closed by the user namespace, where there is one. Each mask
is a mount, and mounts are most of a container's start."""

_READ_ONLY = ("/proc/fs", "/proc/irq", "/proc/sys")


@dataclass(frozen=True)
class Bind:
    """A host path shown at `target`, read-only unless `writable`; never with devices or setuid."""

    source: Path
    target: str
    writable: bool = False
    executable: bool = True


@dataclass(frozen=True)
class Bundle:
    """Everything that differs between two containers.

    `network_namespace` None is an empty network. `clone3` is allowed only where the user namespace
    is closed to further ones. With `nesting` the container has a user namespace of its own, of the
    same ids, in which its daemon may make further namespaces. With `own_run` /run is the image's.
    """

    sandbox_id: str
    hostname: str
    rootfs: Path
    network_namespace: Path | None
    resources: Resources
    architecture: str
    binds: tuple[Bind, ...] = ()
    user_namespace: Path | None = None
    clone3: bool = False
    id_base: int = 0
    cgroup_name: str = ""
    max_open_files: int = 4096
    seccomp_program: str | None = None
    """Only for a runtime that takes it."""
    nesting: bool = False
    own_run: bool = False
    gvisor: bool = False

    def config(self) -> dict[str, Any]:
        """The content of config.json, OCI runtime specification 1.0."""
        return {
            "ociVersion": "1.0.2",
            "process": self._process(),
            "root": {"path": str(self.rootfs)},
            "hostname": self.hostname,
            "mounts": [*self._mounts()],
            "linux": self._linux(),
            "annotations": self._annotations(),
        }

    def _mounts(self) -> list[dict[str, Any]]:
        shm = f"size={self.resources.shm_bytes}"
        return [
            _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=1m"),
            _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
            _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", shm),
            *self._run(),
            # Not sysfs: it would show the host's devices and network interfaces.
            _mount("/sys", "tmpfs", "nosuid", "noexec", "nodev", "mode=755", "size=64k"),
            *(_bind(bind) for bind in self.binds),
        ]

    def _run(self) -> list[dict[str, Any]]:
        if self.own_run:
            return []
        return [_mount("/run", "tmpfs", "nosuid", "nodev", "mode=755", f"size={self._run_bytes}")]

    def _process(self) -> dict[str, Any]:
        if self.gvisor:
            return _process(self.max_open_files, CAPABILITIES, GVISOR_CAPABILITIES, self.resources.pids)
        return _process(self.max_open_files, self._capabilities())

    def _linux(self) -> dict[str, Any]:
        linux: dict[str, Any] = {
            "namespaces": self._namespaces(),
            "cgroupsPath": f"/{self.cgroup_name}",
            "resources": self._resources(),
            "maskedPaths": [*_MASKED, *(() if self._maps_root else _MASKED_FROM_ROOT)],
            "readonlyPaths": list(_READ_ONLY),
            "seccomp": self._seccomp(),
        }
        if self.gvisor:  # a kernel of its own, which needs none of the rest and knows little of it
            linux = {"namespaces": linux["namespaces"]}
        if self.user_namespace:
            mapping = [{"containerID": 0, "hostID": self.id_base, "size": ID_RANGE}]
            linux |= {"uidMappings": mapping, "gidMappings": mapping}
        return linux

    def _seccomp(self) -> dict[str, Any]:
        """Beside a ready-made program, which replaces it, a profile that allows nothing: it is short."""
        whole = seccomp.profile(self.architecture, clone3=self.clone3, nesting=self.nesting)
        return {**whole, "syscalls": []} if self.seccomp_program else whole

    def _annotations(self) -> dict[str, str]:
        return {seccomp.PROGRAM_KEY: self.seccomp_program} if self.seccomp_program else {}

    @property
    def _run_bytes(self) -> int:
        """Files in memory must leave room for programs, as /dev/shm does."""
        return min(64 << 20, self.resources.memory_bytes // 8)

    @property
    def _maps_root(self) -> bool:
        """Whether root inside is somebody else on the host, which is where clone3 is allowed."""
        return self.clone3

    def _namespaces(self) -> list[dict[str, str]]:
        own = [{"type": name} for name in ("pid", "mount", "uts", "ipc", "cgroup")]
        network = {"type": "network"}
        if self.network_namespace:
            network["path"] = str(self.network_namespace)
        if self.nesting or (self.gvisor and self.user_namespace):
            return [{"type": "user"}, *own, network]
        user = [{"type": "user", "path": str(self.user_namespace)}] if self.user_namespace else []
        return [*user, *own, network]

    def _capabilities(self) -> tuple[str, ...]:
        return (*CAPABILITIES, *NESTING_CAPABILITIES) if self.nesting else CAPABILITIES

    def _resources(self) -> dict[str, Any]:
        """Only read by a runtime that insists on managing cgroups itself; same figures as ours."""
        return {
            "devices": [{"allow": False, "access": "rwm"}],
            "memory": {"limit": self.resources.memory_bytes},
            "cpu": {"quota": max(1000, self.resources.cpu_millis * 100), "period": 100_000},
        }


def _process(
    max_open_files: int, bounding: tuple[str, ...], held: tuple[str, ...] = (), pids: int | None = None
) -> dict[str, Any]:
    limits = {"RLIMIT_NOFILE": max_open_files} | ({"RLIMIT_NPROC": pids} if pids else {})
    sets = {"bounding": bounding, "effective": held or bounding, "permitted": held or bounding}
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(DAEMON_ARGUMENTS),
        "env": [],
        "cwd": "/",
        "noNewPrivileges": True,
        "capabilities": {name: list(capabilities) for name, capabilities in sets.items()},
        "rlimits": [{"type": name, "soft": limit, "hard": limit} for name, limit in limits.items()],
    }


def _mount(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}


def _bind(bind: Bind) -> dict[str, Any]:
    options = ["bind", "rw" if bind.writable else "ro", "nosuid", "nodev"]
    if not bind.executable:
        options.append("noexec")
    return {"destination": bind.target, "type": "bind", "source": str(bind.source), "options": options}
