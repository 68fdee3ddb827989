# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines of QEMU's type `microvm`, driven over QMP.

The process gives up all privileges before the guest runs its first instruction: it changes to a
user of its own, sees an empty directory as its root, and may start no programs. Everything that it
needs is handed over as open descriptors.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from qemu.qmp import ExecuteError, QMPClient, QMPError

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure
from casulo.runtimes.microvm import tsc, wire
from casulo.runtimes.microvm.kernel import HEAD
from casulo.runtimes.microvm.processor import features
from casulo.runtimes.microvm.vmm import STATE, Hardware, Plan, Process, Sockets
from casulo.runtimes.microvm.wire import Wire

PROGRAM = "qemu-system-x86_64"
MACHINE = "microvm,acpi=on,pit=on,pic=on,rtc=off,memory-backend=mem"
COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 random.trust_cpu=on reboot=t lsm=landlock psi=0 audit=0 nowatchdog"
)
"""Without what wakes up or watches every step for nobody: the machine is one sandbox's."""

EMULATED = "max"
_EMULATED_LINE = "mitigations=off tsc=reliable"
"""An emulated processor does not speculate, and what the host's one does is not in the guest's hands. Where
the counter is compared with the timer's ticks, of which a busy host loses some, the guest gives it up, and
its sleep between ticks with it: an idle machine then takes a fortieth of a processor."""

_PORTS = {"link": "casulo.link", "output": "casulo.output"}
_TRANSLATIONS_MIB = 96
"""Room for translated code in emulation, of which QEMU would take up to a gigabyte. A start and some commands
take 40; when it is full all is thrown away, and the next command takes 200 ms longer."""

_MIGRATION_SECONDS = 120.0
_STATE_SET = 3
_EVENTS = {"capability": "events", "state": True}
_WITHOUT_MEMORY = ("-global", "migration.send-configuration=off")
"""How a saved state is that `_send` writes."""


class Qemu:
    """The driver. `root` is the empty directory that monitors see."""

    name = "qemu"
    takes_memory = True
    redials = False

    def __init__(self, accelerator: str, root: Path, version: str) -> None:
        self.accelerator = accelerator
        self._root = root
        self._version = version

    @property
    def fingerprint(self) -> str:
        """What a frozen machine can only be restored with."""
        processor = features() if self._is_kvm else EMULATED
        return f"qemu {self._version} {self.accelerator} {MACHINE} {self._words} {processor}"

    @property
    def _is_kvm(self) -> bool:
        return self.accelerator == "kvm"

    async def start(self, plan: Plan) -> Process:
        """Start the process; with an incoming state it waits for `load`."""
        return await asyncio.to_thread(self._start, plan)

    def _start(self, plan: Plan) -> Process:
        with ExitStack() as stack:
            sockets = {name: _listen(path, stack) for name, path in _socket_paths(plan.sockets).items()}
            log = stack.enter_context(plan.log.open("ab"))
            disks = _open_disks(plan, stack)
            inherited = [*sockets.values(), *disks.values(), plan.tap]
            inherited += [*_given(plan.memory), *_given(plan.incoming)]
            process = subprocess.Popen(
                [PROGRAM, *self.arguments(plan, sockets, disks)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
            )
        process.returncode = 0  # it is watched and reaped by its descriptor, not by this object
        started = linux.start_time(process.pid)
        if started is None:
            raise _died(plan.log)
        return Process(process.pid, started)

    def arguments(self, plan: Plan, sockets: Mapping[str, int], disks: Mapping[str, int]) -> list[str]:
        """The command line. Pure; `sockets` and `disks` are descriptors by name."""
        return [
            *("-M", MACHINE, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *self._processor(plan.hardware),
            *("-object", _memory(plan), "-m", str(plan.hardware.memory_bytes >> 20)),
            *self._kernel(plan),
            *_disks(disks),
            *("-netdev", f"tap,id=net,fd={plan.tap}", "-device", "virtio-net-device,netdev=net"),
            *("-device", "virtio-rng-device", "-device", "virtio-serial-device"),
            *_ports(sockets),
            *_WITHOUT_MEMORY,
            *(("-S", "-incoming", "defer") if plan.incoming is not None else ()),
            *("-sandbox", "on,obsolete=deny,spawn=deny,resourcecontrol=deny"),
            *("-chroot", str(self._root)),
            *(("-runas", f"{plan.uid}:{plan.uid}") if plan.uid else ()),
        ]

    def _kernel(self, plan: Plan) -> list[str]:
        """A restored machine has its kernel in memory. QEMU insists on one, and is content with its head."""
        if plan.incoming is not None:
            return ["-kernel", str(plan.kernel.with_name(HEAD))]
        return ["-kernel", str(plan.kernel), "-initrd", str(plan.initramfs), "-append", self._command_line()]

    def _command_line(self) -> str:
        # An emulated machine has no clock to measure the counter's rate against, and fails at trying.
        return self._words if self._is_kvm else f"{self._words} tsc_early_khz={tsc.kilohertz()}"

    @property
    def _words(self) -> str:
        return COMMAND_LINE if self._is_kvm else f"{COMMAND_LINE} {_EMULATED_LINE}"

    def _processor(self, hardware: Hardware) -> list[str]:
        if self._is_kvm:
            return ["-accel", "kvm", "-cpu", "host", "-smp", str(hardware.vcpus)]
        threads = "single" if hardware.vcpus == 1 else "multi"
        accelerator = f"tcg,thread={threads},tb-size={_TRANSLATIONS_MIB}"
        return ["-accel", accelerator, "-cpu", EMULATED, "-smp", str(hardware.vcpus)]

    async def load(self, plan: Plan) -> None:
        """Take the state in."""
        async with _session(plan.sockets) as qmp:
            await qmp.execute("migrate-set-capabilities", {"capabilities": [_EVENTS]})
            with qmp.listener(("MIGRATION",)) as events:
                await qmp.execute("migrate-incoming", {"uri": f"fd:{plan.incoming}"})
                await _migrated(qmp, events)

    async def go(self, sockets: Sockets) -> None:
        """Let it run."""
        async with _session(sockets) as qmp:
            await qmp.execute("cont")

    async def halt(self, sockets: Sockets) -> None:
        """Stop its processors."""
        async with _session(sockets) as qmp:
            await qmp.execute("stop")

    async def runs(self, sockets: Sockets) -> bool:
        """By its own word."""
        async with _session(sockets) as qmp:
            told: Any = await qmp.execute("query-status")
            return bool(told["running"])

    async def dial(self, sockets: Sockets, line: str) -> Wire:
        """Every line is a socket that listens from the start."""
        return await wire.unix(_socket_paths(sockets)[line])

    async def save(self, sockets: Sockets, target: Path) -> None:
        """Send the state of everything but memory and disks to the file."""
        with (target / STATE).open("wb") as state:
            async with _session(sockets) as qmp:
                await _send(qmp, state.fileno())


def _socket_paths(sockets: Sockets) -> dict[str, Path]:
    return {
        "control": sockets.control,
        "link": sockets.link,
        "output": sockets.output,
        "console": sockets.console,
    }


def _listen(path: Path, stack: ExitStack) -> int:
    """A listening socket, made here so that whoever connects next does not have to wait for it."""
    path.unlink(missing_ok=True)
    listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(4)
    return listener.fileno()


def _given(descriptor: int | None) -> tuple[int, ...]:
    return () if descriptor is None else (descriptor,)


def _memory(plan: Plan) -> str:
    size = plan.hardware.memory_bytes
    if plan.memory is None:
        return f"memory-backend-ram,id=mem,size={size}"
    share = "off" if plan.private_memory else "on"
    return f"memory-backend-file,id=mem,size={size},mem-path=/proc/self/fd/{plan.memory},share={share}"


def _open_disks(plan: Plan, stack: ExitStack) -> dict[str, int]:
    """The own disk twice: when a machine was frozen its monitor goes on with the read-only one."""
    wanted = {
        "image": (plan.image_disk, os.O_RDONLY),
        "own": (plan.own_disk, os.O_RDWR),
        "own-frozen": (plan.own_disk, os.O_RDONLY),
    }
    opened = {}
    for name, (path, flags) in wanted.items():
        opened[name] = os.open(path, flags | os.O_CLOEXEC)
        stack.callback(os.close, opened[name])
    return opened


def _disks(opened: Mapping[str, int]) -> list[str]:
    # What a disk loses when the host's power fails is of no use without the memory, which is lost too.
    # QEMU's locks are in the way of its own second descriptor, and nobody else uses the disk.
    own = "format=raw,file.driver=file,file.filename=/dev/fdset/2,file.locking=off,cache=unsafe"
    return [
        *("-add-fd", f"fd={opened['image']},set=1", "-add-fd", f"fd={opened['own']},set=2"),
        *("-add-fd", f"fd={opened['own-frozen']},set=2"),
        *("-drive", "id=image,if=none,format=raw,file=/dev/fdset/1,readonly=on"),
        *("-device", "virtio-blk-device,drive=image"),
        *("-drive", f"id=own,if=none,{own}"),
        *("-device", "virtio-blk-device,drive=own"),
    ]


def _ports(sockets: Mapping[str, int]) -> list[str]:
    arguments = []
    for name, descriptor in sockets.items():
        arguments += ["-chardev", f"socket,id={name},fd={descriptor},server=on,wait=off"]
    arguments += ["-mon", "chardev=control,mode=control", "-serial", "chardev:console"]
    for name, port in _PORTS.items():
        arguments += ["-device", f"virtserialport,chardev={name},name={port}"]
    return arguments


@asynccontextmanager
async def _session(sockets: Sockets) -> AsyncIterator[QMPClient]:
    client = QMPClient("casulo")
    try:
        await client.connect(str(sockets.control))
        try:
            yield client
        finally:
            await client.disconnect()
    except (QMPError, ExecuteError, OSError, EOFError) as error:
        raise RuntimeFailure(f"the virtual machine monitor did not obey: {_reason(error)}") from error


def _pass_descriptor(qmp: QMPClient, descriptor: int) -> None:
    """As the library's own method does, which works with asyncio's sockets and not with uvloop's."""
    assert qmp._writer is not None
    used = qmp._writer.transport.get_extra_info("socket")
    with socket.socket(fileno=os.dup(used.fileno())) as same:
        socket.send_fds(same, [b" "], [descriptor])


async def _send(qmp: QMPClient, state: int) -> None:
    _pass_descriptor(qmp, state)
    await qmp.execute("add-fd", {"fdset-id": _STATE_SET})
    try:
        # Made for Xen and the only command that leaves the memory to others. `live` would give up the disks.
        where = {"filename": f"/dev/fdset/{_STATE_SET}", "live": False}
        await qmp.execute("xen-save-devices-state", where)
    finally:
        await qmp.execute("remove-fd", {"fdset-id": _STATE_SET})


async def _migrated(qmp: QMPClient, events: Any) -> None:
    async with asyncio.timeout(_MIGRATION_SECONDS):
        async for event in events:
            status = event["data"]["status"]
            if status == "completed":
                return
            if status == "failed":
                told: Any = await qmp.execute("query-migrate")
                raise RuntimeFailure(
                    f"the machine's state was refused: {told.get('error-desc', 'it said no more')}"
                )


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _died(log: Path) -> RuntimeFailure:
    lines = log.read_text(errors="replace").splitlines()[-3:]
    return RuntimeFailure(
        f"the virtual machine monitor ended at once: {' '.join(lines)}", code=Code.SANDBOX_START_FAILED
    )
