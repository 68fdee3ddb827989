# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines of Firecracker, driven over its HTTP API. It needs KVM.

The monitor is given files by name, below a folder that it takes for the root of everything: with
`jailer` it can see nothing else, and has a user of its own. Its lines are connections to ports of the
guest's vsock, which break whenever the machine is saved, and the console is a named pipe.

    <machine>/jail/<program>/machine/root/vmlinux, initramfs, image, own     what it is started with
                                         /origin.state, origin.memory        what it is restored from
                                         /saved.state, saved.memory          what it was told to save
                                         /control, vsock                     its sockets
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure
from casulo.runtimes.microvm import disks, processes, wire
from casulo.runtimes.microvm.fcapi import Api, shortened
from casulo.runtimes.microvm.kernel import Kernel
from casulo.runtimes.microvm.processor import features
from casulo.runtimes.microvm.vmm import MEMORY, STATE, Plan, Process, Sockets
from casulo.runtimes.microvm.wire import Wire

PROGRAM = "firecracker"
JAILER = "jailer"
COMMAND_LINE = "console=ttyS0 quiet panic=-1 reboot=k random.trust_cpu=on casulo.line=vsock"
PORTS = {"link": 1024, "output": 1025}
"""As the guest listens on them."""

_NAME = "machine"
_GUEST_CID = 3
_RETRY_SECONDS = 0.01
_START_SECONDS = 10.0
_TUNSETPERSIST = 0x400454CB
_TUNSETOWNER = 0x400454CC


class Firecracker:
    """The driver. `jailer` None runs the monitor as the server's own user, seeing all files."""

    name = "firecracker"
    accelerator = "kvm"
    takes_memory = False
    redials = True

    def __init__(self, program: Path, version: str, jailer: Path | None) -> None:
        self._program = program
        self._version = version
        self._jailer = jailer

    @property
    def fingerprint(self) -> str:
        """What a frozen machine can only be restored with."""
        return f"firecracker {self._version} {features()}"

    def root(self, sockets: Sockets) -> Path:
        """What the monitor takes for the root of everything, or at least begins from."""
        return _jail(sockets) / self._program.name / _NAME / "root"

    async def start(self, plan: Plan) -> Process:
        """Boot the machine, or load the state that it begins from and let it stand still."""
        process = await asyncio.to_thread(self._spawn, plan)
        try:
            api = self._api(plan.sockets)
            await self._answering(api, process, plan)
            for method, path, body in requests(plan):
                await api.call(method, path, body)
        except BaseException:
            await asyncio.to_thread(processes.kill, process)
            raise
        if plan.frozen is not None:
            await asyncio.to_thread(self._unlink_origin, plan.sockets)
        return process

    def _unlink_origin(self, sockets: Sockets) -> None:
        """It is mapped. A name for it here could only be written to by mistake: others share it."""
        for name in (STATE, MEMORY):
            (self.root(sockets) / f"origin.{name}").unlink(missing_ok=True)

    def _spawn(self, plan: Plan) -> Process:
        self._furnish(plan)
        _let_go(plan.tap, plan.uid)
        with _console(plan.sockets) as console, plan.log.open("ab") as log:
            started = subprocess.Popen(
                self.command(plan),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd=self.root(plan.sockets),
            )
        started.returncode = 0  # it is watched and reaped by its descriptor, not by this object
        since = linux.start_time(started.pid)
        if since is None:
            raise _died(plan.log)
        return Process(started.pid, since)

    def command(self, plan: Plan) -> list[str]:
        """The command line. Pure."""
        own = ["--api-sock", "control"]
        if self._jailer is None:
            return [str(self._program), "--id", _NAME, *own]
        return [
            *(str(self._jailer), "--id", _NAME, "--exec-file", str(self._program)),
            *("--uid", str(plan.uid), "--gid", str(plan.uid)),
            *("--chroot-base-dir", str(_jail(plan.sockets)), "--", *own),
        ]

    def _furnish(self, plan: Plan) -> None:
        """Put everything into the root that the monitor is to find there."""
        shutil.rmtree(_jail(plan.sockets), ignore_errors=True)  # of the machine's life before it was paused
        root = self.root(plan.sockets)
        root.mkdir(mode=0o700, parents=True)
        if self._jailer is not None:
            os.chown(root, plan.uid, plan.uid)
        for name, source in _files(plan).items():
            _link(source, root / name)
        owner = plan.uid if self._jailer is not None else os.geteuid()
        os.chown(root / "own", owner, owner)

    async def _answering(self, api: Api, process: Process, plan: Plan) -> None:
        """It offers nothing to wait for but its socket."""
        async with asyncio.timeout(_START_SECONDS):
            while not await api.answers():
                if linux.start_time(process.pid) != process.started:
                    raise _died(plan.log)
                await asyncio.sleep(_RETRY_SECONDS)

    async def load(self, plan: Plan) -> None:
        """Done by `start`."""

    async def go(self, sockets: Sockets) -> None:
        """Let it run."""
        await self._api(sockets).call("PATCH", "/vm", {"state": "Resumed"})

    async def halt(self, sockets: Sockets) -> None:
        """Stop its processors."""
        await self._api(sockets).call("PATCH", "/vm", {"state": "Paused"})

    async def runs(self, sockets: Sockets) -> bool:
        """By its own word."""
        return await self._api(sockets).state() == "Running"

    async def save(self, sockets: Sockets, target: Path) -> None:
        """State and memory, always both."""
        names = {"snapshot_path": f"saved.{STATE}", "mem_file_path": f"saved.{MEMORY}"}
        await self._api(sockets).call("PUT", "/snapshot/create", {"snapshot_type": "Full", **names})
        await asyncio.to_thread(_take_out, self.root(sockets), target)

    async def dial(self, sockets: Sockets, line: str) -> Wire:
        """A port of the guest, as soon as it listens there, or the console."""
        if line == "console":
            return await wire.pipe(sockets.console)
        while True:
            with shortened(self.root(sockets) / "vsock") as place:
                opened = await wire.unix(place)
            opened.write(f"CONNECT {PORTS[line]}\n".encode())
            if await _accepted(opened):
                return opened
            opened.close()
            await asyncio.sleep(_RETRY_SECONDS)

    def _api(self, sockets: Sockets) -> Api:
        return Api(self.root(sockets) / "control")


def requests(plan: Plan) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """What is asked of a fresh monitor, in order. Pure."""
    if plan.frozen is not None:
        yield (
            "PUT",
            "/snapshot/load",
            {
                "snapshot_path": f"origin.{STATE}",
                "mem_backend": {"backend_type": "File", "backend_path": f"origin.{MEMORY}"},
                "network_overrides": [{"iface_id": "eth0", "host_dev_name": plan.interface}],
                "resume_vm": False,
            },
        )
        return
    hardware = plan.hardware
    # More than one processor comes in pairs only; the control group limits the time that they get.
    vcpus = hardware.vcpus + hardware.vcpus % 2 if hardware.vcpus > 1 else 1
    yield "PUT", "/machine-config", {"vcpu_count": vcpus, "mem_size_mib": hardware.memory_bytes >> 20}
    yield (
        "PUT",
        "/boot-source",
        {
            "kernel_image_path": "vmlinux",
            "initrd_path": "initramfs",
            "boot_args": COMMAND_LINE,
        },
    )
    for name, fixed in (("image", True), ("own", False)):
        yield (
            "PUT",
            f"/drives/{name}",
            {
                "drive_id": name,
                "path_on_host": name,
                "is_root_device": False,
                "is_read_only": fixed,
            },
        )
    yield "PUT", "/network-interfaces/eth0", {"iface_id": "eth0", "host_dev_name": plan.interface}
    yield "PUT", "/vsock", {"guest_cid": _GUEST_CID, "uds_path": "vsock"}
    yield "PUT", "/entropy", {}
    yield "PUT", "/actions", {"action_type": "InstanceStart"}


def _files(plan: Plan) -> dict[str, Path]:
    found = {"image": plan.image_disk, "own": plan.own_disk}
    if plan.frozen is not None:
        return found | {f"origin.{name}": plan.frozen / name for name in (STATE, MEMORY)}
    return found | {"vmlinux": Kernel(plan.kernel.parent).uncompressed, "initramfs": plan.initramfs}


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where the folders are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        disks.copy(source, target)
    if target.name != "own":
        target.chmod(0o444)  # its folder on the host is closed, and nobody else's user is in the jail


def _take_out(root: Path, target: Path) -> None:
    """Copies: the monitor keeps what it has open, and what it calls a file may be anything."""
    for name in (MEMORY, STATE):
        saved = root / f"saved.{name}"
        descriptor = os.open(saved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RuntimeFailure(f"the virtual machine monitor saved no file as {name}")
            disks.copy(Path(f"/proc/self/fd/{descriptor}"), target / name)
        finally:
            os.close(descriptor)
            saved.unlink(missing_ok=True)


async def _accepted(opened: Wire) -> bool:
    try:
        return (await opened.reader.readline()).startswith(b"OK ")
    except ValueError as error:
        raise OSError("the monitor said too much") from error


def _jail(sockets: Sockets) -> Path:
    if sockets.jail is None:
        raise ValueError("a machine of Firecracker needs a folder for its files")
    return sockets.jail


def _let_go(tap: int, uid: int) -> None:
    """The monitor opens the device by its name, which only one process can; so it outlives our descriptor."""
    fcntl.ioctl(tap, _TUNSETOWNER, uid)
    fcntl.ioctl(tap, _TUNSETPERSIST, 1)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, tap, inheritable=False)
    os.close(nothing)


@contextmanager
def _console(sockets: Sockets) -> Iterator[int]:
    """The monitor's end of the console: it never waits for a reader, and survives that there is none."""
    sockets.console.unlink(missing_ok=True)
    os.mkfifo(sockets.console, 0o600)
    descriptor = os.open(sockets.console, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _died(log: Path) -> RuntimeFailure:
    lines = log.read_text(errors="replace").splitlines()[-3:]
    return RuntimeFailure(
        f"the virtual machine monitor ended at once: {' '.join(lines)}", code=Code.SANDBOX_START_FAILED
    )
