# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the local runtime sets up on this machine once, before the first sandbox.

All of it is named after one server instance, i.e. after its data directory, so that several
servers share a machine without seeing each other's things. Without root, the folder is below
$XDG_RUNTIME_DIR or the data directory, and there are no namespaces to keep in it.

    /run/casulo/<instance>/netns/<n>   network namespaces of slots
                          /userns      the user namespace that all sandboxes are in
                          /rootfs      where, in a private mount namespace, a root is put together
                          /execd       where, in the same way, the daemon's binary is shown
                          /hidden      an empty directory
                          /oci         state of the OCI runtime
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.model.sandbox import Isolation
from casulo.network.filter import ANY_SANDBOX
from casulo.network.instance import instance_of
from casulo.runtimes.local import cgroups, engines, gvisor, rootless
from casulo.runtimes.local.bundle import ID_RANGE
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.settings import LocalSettings

ID_BASE = 1_000_000_000
"""Host uid and gid of the sandboxes' root: far above what people and subuid ranges use."""

MAX_OPEN_FILES = 65536


@dataclass(frozen=True)
class Host:
    """The facts and paths that making a container needs.

    `container` and `gvisor` start the two isolations; `no_gvisor` says why there is only the first.
    `hidden` is what the OCI runtime must not see: crun refuses hosts with both cgroup versions, even
    when it is told to manage neither.
    """

    instance: str
    run: Path
    data: Path
    layout: cgroups.Layout
    cgroup_parent: str
    container: Engine
    user_namespace: Path | None
    max_open_files: int
    hidden: Path | None = None
    rootless: bool = False
    gvisor: Engine | None = None
    no_gvisor: str = ""

    def engine(self, isolation: Isolation) -> Engine:
        """What starts sandboxes of this isolation; only asked where the host has it."""
        return self.gvisor if isolation is Isolation.GVISOR and self.gvisor else self.container

    @property
    def id_base(self) -> int:
        """Host uid of the sandboxes' root."""
        if self.rootless:
            return os.geteuid()
        return ID_BASE if self.user_namespace else 0

    @property
    def closed_to_namespaces(self) -> bool:
        """Whether the sandboxes' user namespace allows no further ones."""
        return self.rootless or self.user_namespace is not None

    @property
    def programs(self) -> Path:
        """Where a program may be kept. Mounts show this path inside: the less it tells, the better."""
        executable = not os.statvfs(self.run).f_flag & os.ST_NOEXEC
        return self.run if executable else self.data

    @property
    def sandboxes(self) -> Path:
        """Folder with one directory per sandbox."""
        return self.data / "sandboxes"

    @property
    def interface_prefix(self) -> str:
        """Start of the names of this server's network interfaces."""
        return f"{ANY_SANDBOX}{self.instance}-"

    def group(self, sandbox_id: str) -> cgroups.Group:
        """The control groups of a sandbox."""
        return cgroups.Group(self.layout, f"{self.cgroup_parent}/{sandbox_id}")


def prepare(settings: LocalSettings, data: Path) -> Host:
    """Set the machine up; Unsupported says what is missing and how to get it."""
    privileged = is_privileged()
    if not privileged:
        rootless.require(settings.userns)
    instance = instance_of(data)
    run = (Path("/run") if privileged else rootless.runtime_folder(data)) / "casulo" / instance
    for name in ("netns", "rootfs", "hidden", "proc", *engines.NAMES):
        (run / name).mkdir(parents=True, exist_ok=True)
    (run / "execd").touch()
    data.joinpath("sandboxes").mkdir(parents=True, exist_ok=True)
    runtime = find_oci_runtime(settings.oci_runtime if privileged else "crun")
    found = cgroups.detect()
    layout = found if privileged else rootless.usable(found)
    parent = "casulo" if privileged else rootless.cgroup_parent(layout)
    gvisor_engine, no_gvisor = _gvisor(settings, run, privileged)
    return Host(
        instance=instance,
        run=run,
        data=data,
        layout=layout,
        cgroup_parent=f"{parent}/{instance}",
        container=engines.engine(runtime, run),
        user_namespace=_user_namespace(settings, runtime, run / "userns") if privileged else None,
        max_open_files=min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        hidden=found.v2 if found.mode == "hybrid" and runtime.name == "crun" else None,
        rootless=not privileged,
        gvisor=gvisor_engine,
        no_gvisor=no_gvisor,
    )


def _gvisor(settings: LocalSettings, run: Path, privileged: bool) -> tuple[Engine | None, str]:
    """gVisor's engine, or why there is none."""
    if not privileged:
        return None, "gVisor needs a server that runs as root: its network does"
    try:
        found = gvisor.find(settings.gvisor_platform, run.parent)
    except Unsupported as reason:
        return None, f"{reason.message}; {reason.hint}"
    if found.needs_statx:
        gvisor.install_library(run)
    return engines.engine(found.program, run, found.platform, found.needs_statx), ""


def is_privileged() -> bool:
    """Whether this process may administrate the machine's namespaces and network."""
    return linux.has_capability("CAP_SYS_ADMIN") and linux.has_capability("CAP_NET_ADMIN")


def find_oci_runtime(wanted: str) -> Path:
    """The program that starts containers; with `auto`, the faster one that is installed."""
    names = ("crun", "runc") if wanted == "auto" else (wanted,)
    for name in names:
        if path := shutil.which(name):
            return Path(path)
    raise Unsupported(
        f"no OCI runtime is installed (looked for {', '.join(names)})",
        code=Code.HOST_UNSUPPORTED,
        hint=f"apt-get install {names[0]}",
    )


def _user_namespace(settings: LocalSettings, runtime: Path, path: Path) -> Path | None:
    """The shared user namespace, made if it is not there; None where sandboxes run without."""
    if settings.userns == "off":
        return None
    if runtime.name != "crun":
        # runc enters the user namespace first and may then not enter a slot's network namespace.
        if settings.userns == "on":
            raise Unsupported(
                f"{runtime.name} cannot join prepared network namespaces from a user namespace",
                code=Code.HOST_UNSUPPORTED,
                hint='apt-get install crun, or set [local] userns = "off"',
            )
        return None
    try:
        make_user_namespace(path)
    except (OSError, RuntimeFailure) as error:
        if settings.userns == "auto":
            return None
        raise Unsupported(
            f"user namespaces do not work here: {error}",
            code=Code.HOST_UNSUPPORTED,
            hint='sysctl -w user.max_user_namespaces=15000, or set [local] userns = "off"',
        ) from error
    return path


def make_user_namespace(path: Path) -> None:
    """Keep a user namespace alive at `path`. Idempotent.

    It is closed to further user namespaces, which is what makes clone3 harmless inside: without
    them an unprivileged process cannot make any other kind of namespace either.
    """
    if path.exists() and _enter(path, "exit 0") == 0:
        return
    path.touch()
    holder = subprocess.Popen(
        ["unshare", "--user", "sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        _wait_until_separate(holder.pid)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {ID_BASE} {ID_RANGE}")
        linux.bind(f"/proc/{holder.pid}/ns/user", str(path))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    if _enter(path, "echo 0 > /proc/sys/user/max_user_namespaces") != 0:
        linux.unmount(str(path))
        raise RuntimeFailure("the new user namespace could not be closed to further ones")


def _wait_until_separate(pid: int) -> None:
    own = os.readlink("/proc/self/ns/user")
    for _ in range(5000):
        if os.readlink(f"/proc/{pid}/ns/user") != own:
            return
        time.sleep(0.001)
    raise RuntimeFailure("unshare --user did not make a user namespace")


def _enter(path: Path, script: str) -> int:
    command = ["nsenter", f"--user={path}", "-S", "0", "-G", "0", "sh", "-c", script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
    return done.returncode


def release(host: Host) -> None:
    """Remove what `prepare` made; only when no sandbox of this server is left."""
    linux.unmount(str(host.run / "userns"))
    shutil.rmtree(host.run, ignore_errors=True)
    cgroups.remove_empty(host.cgroup_parent)
