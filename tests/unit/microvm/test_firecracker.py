# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The driver of Firecracker, call by call, against a program that takes its place and keeps its rules."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from casulo.model.errors import RuntimeFailure, Unsupported
from casulo.network import taps
from casulo.network.slots import remove_interface
from casulo.runtimes.microvm import fchost, processes
from casulo.runtimes.microvm.firecracker import Firecracker, requests
from casulo.runtimes.microvm.kernel import Kernel
from casulo.runtimes.microvm.link import Link
from casulo.runtimes.microvm.vmm import Hardware, Plan, Process, Sockets
from support import firecracker
from support.machine import cannot_run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """As long as a path may be that a socket's name could not hold."""
    place = tmp_path / ("long" * 20) / "firecracker"
    place.parent.mkdir()
    place.write_text(f'#!/bin/sh\nexec {sys.executable} {firecracker.__file__} "$@"\n')
    place.chmod(0o755)
    return place


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    for name, content in {"vmlinux": b"\x7fELF", "vmlinuz": b"", "initramfs": b"", "image": b""}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "run").mkdir()
    (tmp_path / "disk").write_bytes(b"disk")
    return Plan(
        hardware=Hardware(3, 256 << 20, 1 << 30),
        kernel=tmp_path / "vmlinuz",
        initramfs=tmp_path / "initramfs",
        image_disk=tmp_path / "image",
        own_disk=tmp_path / "disk",
        sockets=Sockets(tmp_path / "run", tmp_path / ("deep" * 30) / "jail"),
        log=tmp_path / "log",
        tap=-1,
        uid=0,
    )


class Machines:
    """Starts machines, each with a device of its own, and removes them."""

    def __init__(self, vmm: Firecracker) -> None:
        self.vmm = vmm
        self._processes: list[Process] = []
        self._devices: list[str] = []

    async def start(self, plan: Plan) -> Process:
        name = f"cslfc{os.getpid() % 10000}{len(self._devices)}"
        tap = taps._open(name)
        self._devices.append(name)
        try:
            self._processes.append(await self.vmm.start(replace(plan, tap=tap, interface=name)))
        finally:
            os.close(tap)
        return self._processes[-1]

    def calls(self, plan: Plan) -> list[list]:
        return [json.loads(line) for line in (self.vmm.root(plan.sockets) / "calls").read_text().splitlines()]

    def remove(self) -> None:
        for process in self._processes:
            processes.kill(process)
        for name in self._devices:
            remove_interface(name)


@pytest.fixture
async def machines(program: Path) -> AsyncIterator[Machines]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        cannot_run("tap devices need root and /dev/net/tun")
    made = Machines(Firecracker(program, "1.13.1", None))
    yield made
    await asyncio.to_thread(made.remove)


async def test_a_machine_boots_is_saved_and_restored(machines: Machines, plan: Plan, tmp_path: Path) -> None:
    vmm = machines.vmm
    await machines.start(plan)
    link = await Link.open(partial(vmm.dial, plan.sockets, "link"), again=True)
    await link.ask("sync", 30)
    await vmm.halt(plan.sockets)
    with pytest.raises(RuntimeFailure, match="after starting"):
        await vmm._api(plan.sockets).call("PUT", "/actions", {"action_type": "InstanceStart"})
    saved = tmp_path / "saved"
    saved.mkdir()
    await vmm.save(plan.sockets, saved)
    assert (saved / "memory").read_bytes() == b"memory of a machine"
    await vmm.go(plan.sockets)
    await link.ask("clock", 30)  # over another connection: saving broke the first
    await link.close()

    other = replace(plan, sockets=Sockets(tmp_path / "other", tmp_path / "jail2"), frozen=saved)
    other.sockets.folder.mkdir()
    await machines.start(other)
    restored = await Link.open(partial(vmm.dial, other.sockets, "link"), again=True)
    asked = asyncio.ensure_future(restored.ask("renew", 30))
    await asyncio.sleep(0.1)
    assert not asked.done(), "a machine that was restored stands still"
    await vmm.go(other.sockets)
    await asked
    await restored.close()
    assert [path for _, path, _ in machines.calls(other)] == ["/snapshot/load", "/vm"]
    assert not list(vmm.root(other.sockets).glob("origin.*")) and (saved / "memory").exists()


async def test_what_is_asked_of_a_fresh_monitor(machines: Machines, plan: Plan) -> None:
    await machines.start(plan)
    asked = machines.calls(plan)
    assert [path for _, path, _ in asked] == [
        "/machine-config",
        "/boot-source",
        "/drives/image",
        "/drives/own",
        "/network-interfaces/eth0",
        "/vsock",
        "/entropy",
        "/actions",
    ]
    bodies = {path: body for _, path, body in asked}
    assert bodies["/machine-config"] == {"vcpu_count": 4, "mem_size_mib": 256}
    assert bodies["/drives/image"]["is_read_only"] and not bodies["/drives/own"]["is_read_only"]
    assert "casulo.line=vsock" in bodies["/boot-source"]["boot_args"]


async def test_outputs_and_console_are_read_until_the_end(machines: Machines, plan: Plan) -> None:
    process = await machines.start(plan)
    output = await machines.vmm.dial(plan.sockets, "output")
    assert await output.reader.readline() == b"printed by the entrypoint\n"
    console = await machines.vmm.dial(plan.sockets, "console")
    link = await Link.open(partial(machines.vmm.dial, plan.sockets, "link"), again=True)
    await link.ask("sync", 30)
    assert await console.reader.readline() == b"guest: sync\n"
    with pytest.raises(RuntimeFailure):
        await link.ask("die", 30)
    assert await console.reader.read() == b"guest: die\n"
    with pytest.raises(RuntimeFailure, match="ended"):
        await link.ask("sync", 30)
    for wire in (output, console):
        wire.close()
    await link.close()
    await asyncio.to_thread(processes.kill, process)


async def test_a_refusal_is_told_and_leaves_no_process(machines: Machines, plan: Plan) -> None:
    plan.kernel.with_name("vmlinux").write_bytes(b"no kernel")
    with pytest.raises(RuntimeFailure, match="refused /boot-source: Cannot load kernel"):
        await machines.start(plan)
    with pytest.raises(OSError):
        await machines.vmm.dial(plan.sockets, "link")


async def test_a_monitor_that_ends_at_once_is_told_with_its_words(machines: Machines, plan: Plan) -> None:
    machines.vmm._program.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    with pytest.raises(RuntimeFailure, match="broken"):
        await machines.start(plan)


def test_the_jailer_locks_it_up(program: Path, plan: Plan) -> None:
    line = Firecracker(program, "1.13.1", Path("/usr/bin/jailer")).command(replace(plan, uid=77))
    said = " ".join(line)
    assert said.startswith("/usr/bin/jailer --id machine --exec-file")
    assert "--uid 77 --gid 77" in said and said.endswith("-- --api-sock control")


def test_nothing_outside_the_root_is_named(plan: Plan) -> None:
    for made in (plan, replace(plan, frozen=Path("/somewhere"))):
        assert "/somewhere" not in repr(list(requests(made))) and str(plan.own_disk) not in repr(
            list(requests(made))
        )


def test_a_host_without_it_is_told_what_to_do(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path / "6.1.0")
    kernel.modules.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="firecracker is not installed"):
        fchost.driver(kernel)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.defpath}")
    with pytest.raises(Unsupported, match="without vsock"):
        fchost.driver(kernel)
    program.write_text("#!/bin/sh\necho Firecracker v1.7.0\n")
    with pytest.raises(Unsupported, match="another network device"):
        fchost.driver(kernel)
