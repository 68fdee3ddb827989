# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What this host can and cannot do for the local runtime, found out by trying.

Each check makes the thing it is about, in a namespace or directory of its own, and removes it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from casulo import linux
from casulo.images import daemon
from casulo.model.errors import CasuloError
from casulo.model.sandbox import Resources
from casulo.network import filter as packet_filter
from casulo.network.slots import Plan, build, destroy
from casulo.runtimes.local import cgroups, gvisor, host, rootless
from casulo.runtimes.local.settings import LocalSettings


@dataclass(frozen=True)
class Check:
    """One capability: whether it is there, what was seen, and the command that brings it."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


@dataclass(frozen=True)
class Probe:
    """A check not yet made: `run` answers with what it saw, or raises."""

    name: str
    run: Callable[[], str]
    fix: str
    required: bool = True

    def check(self) -> Check:
        """Make the check; a failure becomes its detail."""
        try:
            return Check(self.name, True, self.run(), required=self.required)
        except (CasuloError, OSError, subprocess.SubprocessError) as error:
            fix = error.hint if isinstance(error, CasuloError) and error.hint else self.fix
            detail = error.message if isinstance(error, CasuloError) else str(error)
            return Check(self.name, False, detail, fix, self.required)


_MORE_NAMESPACES = "sysctl -w user.max_user_namespaces=15000"


def report(settings: LocalSettings, data: Path) -> list[Check]:
    """All checks, required ones first."""
    return [probe.check() for probe in _probes(settings, data)]


def _probes(settings: LocalSettings, data: Path) -> list[Probe]:
    return [
        Probe("kernel", _kernel, "boot Linux 5.14 or newer"),
        Probe("privileges", _privileges, "run as root: sudo osb doctor"),
        Probe("oci runtime", lambda: _oci_runtime(settings), "apt-get install crun"),
        Probe("daemon binary", _daemon, "./dev setup, or reinstall the package"),
        Probe("cgroups", _cgroups, "boot with cgroup_enable=memory, or mount the controllers"),
        Probe(
            "overlay",
            lambda: _overlay(data),
            "modprobe overlay; keep [server] data_dir on ext4, xfs or btrfs",
        ),
        Probe("network namespaces", lambda: _slot(settings), "modprobe veth"),
        Probe("address range", lambda: _addresses(settings), "set [local] network to an unused range"),
        Probe("packet filter", lambda: _filter(settings), "apt-get install nftables; modprobe nf_tables"),
        Probe("seccomp", _seccomp, "boot a kernel built with CONFIG_SECCOMP_FILTER"),
        Probe(
            "user namespaces", _user_namespaces, "sysctl -w user.max_user_namespaces=15000", required=False
        ),
        Probe("name servers", _resolvers, "list a name server in /etc/resolv.conf", required=False),
        Probe("outbound route", _route, "ip route add default via GATEWAY", required=False),
        Probe("gvisor", lambda: _gvisor(settings), gvisor.INSTALL, required=False),
        Probe(
            "kvm",
            _kvm,
            "enable virtualization in the firmware; modprobe kvm_intel or kvm_amd",
            required=False,
        ),
    ]


def _kernel() -> str:
    release = platform.release()
    major, minor = (int(part) for part in release.split(".")[:2])
    if (major, minor) < (5, 14):
        raise OSError(f"Linux {release} lacks cgroup.kill and other calls that are used")
    return f"Linux {release} {daemon.host_architecture()}"


def _privileges() -> str:
    if host.is_privileged():
        return f"uid {os.geteuid()} with CAP_SYS_ADMIN and CAP_NET_ADMIN"
    rootless.require("auto")
    return f"uid {os.geteuid()} without root: sandboxes get a user namespace and no network"


def _oci_runtime(settings: LocalSettings) -> str:
    path = host.find_oci_runtime(settings.oci_runtime)
    return f"{_first_line([str(path), '--version'])} ({path})"


def _daemon() -> str:
    path = daemon.execd_binary(daemon.host_architecture())
    return f"{path.name}, {path.stat().st_size / 1e6:.1f} MB"


def _cgroups() -> str:
    layout = cgroups.detect()
    group = cgroups.Group(layout, f"casulo/doctor-{os.getpid()}/probe")
    group.create(_SMALL, 0)
    group.remove()
    cgroups.remove_empty(str(Path(group.name).parent))
    return f"{layout.mode}; memory, cpu and pids limits can be set"


def _overlay(data: Path) -> str:
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=data) as scratch:
        linux.in_own_thread(lambda: _mount_overlay(Path(scratch)))
    free = shutil.disk_usage(data).free / 1e9
    return f"works on {data}, {free:.0f} GB free"


def _mount_overlay(scratch: Path) -> None:
    linux.private_mounts()
    for name in ("lower", "upper", "work", "merged"):
        (scratch / name).mkdir()
    layers = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
    linux.mount("overlay", f"{scratch}/merged", "overlay", 0, layers)
    linux.unmount(f"{scratch}/merged")
    shutil.rmtree(scratch / "work")  # overlay's own leftovers have no permissions for others


def _slot(settings: LocalSettings) -> str:
    folder = Path("/run/casulo") / f"doctor-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        plan = Plan(settings.network, f"{packet_filter.ANY_SANDBOX}doc-", folder, folder / "lock")
        slot = plan.slot(plan.capacity - 1)
        build(slot)
        destroy(slot)
    finally:
        folder.rmdir()
    return "a namespace with a veth pair can be made"


def _addresses(settings: LocalSettings) -> str:
    ours = settings.network
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        network = IPv4Network((_address(destination), bin(int(mask, 16)).count("1")))
        if (
            network.prefixlen
            and network.overlaps(ours)
            and not interface.startswith(packet_filter.ANY_SANDBOX)
        ):
            raise OSError(f"{ours} overlaps {network}, which is routed to {interface}")
    return f"{ours}: room for {1 << (30 - ours.prefixlen)} sandboxes"


def _address(hexadecimal: str) -> int:
    return int.from_bytes(bytes.fromhex(hexadecimal), "little")


def _filter(settings: LocalSettings) -> str:
    name = f"casulo_doctor_{os.getpid()}"
    table = packet_filter.Filter(name, f"{packet_filter.ANY_SANDBOX}doc-", settings.network, (), False)
    table.apply()
    table.remove()
    return _first_line(["nft", "--version"])


def _seccomp() -> str:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    if "errno" not in actions:
        raise OSError(f"the kernel's seccomp only knows {' '.join(actions)}")
    return "filters can be installed"


def _user_namespaces() -> str:
    with tempfile.TemporaryDirectory(prefix="casulo-doctor-") as scratch:
        path = Path(scratch) / "userns"
        try:
            host.make_user_namespace(path)
        finally:
            linux.unmount(str(path))
    return f"root inside is uid {host.ID_BASE} on the host"


def _resolvers() -> str:
    found = packet_filter.host_resolvers()
    if not found:
        raise OSError("no name server is reachable from a sandbox; only loopback ones are configured")
    return ", ".join(map(str, found))


def _route() -> str:
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination = line.split()[:2]
        if destination == "00000000":
            return f"default route through {interface}"
    raise OSError("this host has no default route")


def _gvisor(settings: LocalSettings) -> str:
    found = gvisor.find(settings.gvisor_platform, Path("/run/casulo"))
    return f"runsc {found.release} starts sandboxes; platform {found.platform} ({found.program})"


def _program(name: str) -> str:
    path = shutil.which(name)
    if not path:
        raise OSError(f"{name} is not installed")
    return f"{_first_line([path, '--version'])} ({path})"


def _kvm() -> str:
    with open("/dev/kvm", "rb"):
        return "/dev/kvm opens; whether guests run on it shows only when one is booted"


def _first_line(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, errors="replace"
    )
    return (done.stdout or done.stderr).strip().splitlines()[0]


_SMALL = Resources(cpu_millis=100, memory_bytes=32 << 20, pids=16, shm_bytes=1 << 20)
