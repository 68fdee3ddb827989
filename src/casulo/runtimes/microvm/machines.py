# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines between their start and their end, whatever sandbox they are or will be.

A machine has a name. Everything of it is in its folder, so that `remove` works for a machine that an
earlier server started. What is kept here in memory are only open lines.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from casulo.model.errors import Code, RuntimeFailure
from casulo.network.slots import Slot
from casulo.network.taps import Taps
from casulo.runtimes.microvm import disks, processes
from casulo.runtimes.microvm.capped import Capped, pump
from casulo.runtimes.microvm.capture import Memory
from casulo.runtimes.microvm.folder import Folder, Folders, Parts
from casulo.runtimes.microvm.link import Link
from casulo.runtimes.microvm.vmm import MEMORY, STATE, Plan, Vmm

T = TypeVar("T")
CONSOLE_CAP = 256 << 10
_UID_BASE = 1_000_200_000
"""Host users of monitors, one for each slot: far above what people and subuid ranges use."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Origin:
    """What a machine begins from: a disk to copy, and perhaps memory and state of a frozen one.

    `frozen` None boots it; else it is a folder that a machine was saved to. `memory` with `private` is
    only what memory is at first; its descriptor belongs to the caller.
    """

    disk: Path | None = None
    memory: int | None = None
    private: bool = True
    frozen: Path | None = None


class Lines:
    """The open lines of one machine: orders, and two outputs that are kept in files."""

    def __init__(self, link: Link, pumps: list[asyncio.Task[None]]) -> None:
        self.link = link
        self._pumps = pumps

    @classmethod
    async def open(cls, vmm: Vmm, folder: Folder, log_cap: int) -> Lines:
        """Connect all."""
        dials = {name: partial(vmm.dial, folder.sockets, name) for name in ("link", "console", "output")}
        link = await Link.open(dials["link"], again=vmm.redials)
        console = Capped(folder.console_log, CONSOLE_CAP)
        output = Capped(folder.entrypoint_log, log_cap)
        loop = asyncio.get_running_loop()
        pumps = [
            loop.create_task(pump(dials["console"], console)),
            loop.create_task(pump(dials["output"], output, again=vmm.redials)),
        ]
        return cls(link, pumps)

    async def drained(self, timeout: float = 1.0) -> None:
        """Wait until what an ended machine printed is in its files."""
        await asyncio.wait(self._pumps, timeout=timeout)

    async def close(self) -> None:
        """Hang up. Idempotent."""
        for task in self._pumps:
            task.cancel()
        await asyncio.wait(self._pumps)
        await self.link.close()


class Machines:
    """All machines of one server."""

    def __init__(self, folders: Folders, vmm: Vmm, taps: Taps, log_cap: int) -> None:
        self.folders = folders
        self.vmm = vmm
        self._taps = taps
        self._log_cap = log_cap
        self._lines: dict[str, Lines] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def slot(self, folder: Folder) -> Slot:
        """The addresses of a machine."""
        index = folder.index()
        if index is None:
            raise RuntimeFailure(f"{folder.path} has no network slot", code=Code.SANDBOX_START_FAILED)
        return self._taps.at(index)

    async def lines(self, name: str) -> Lines:
        """The machine's lines, opened if they are not."""
        if name not in self._lines:
            self._lines[name] = await Lines.open(self.vmm, self.folders.of(name), self._log_cap)
        return self._lines[name]

    async def start(self, name: str, parts: Parts, origin: Origin) -> Folder:
        """A new machine: booting, or standing still where its origin was frozen."""
        folder = self.folders.of(name)
        try:
            tap = await _in_thread(lambda: self._prepare(folder, parts, origin))
            await self._launch(folder, parts, origin, tap)
        except BaseException:
            await asyncio.shield(self.remove(name))
            raise
        return folder

    async def restart(self, folder: Folder) -> None:
        """The machine of a paused sandbox again, standing still, at its old address."""
        index = self.slot(folder).index
        folder.prepare_again()
        with ExitStack() as stack:
            memory = None
            if self.vmm.takes_memory:
                memory = os.open(folder.frozen / MEMORY, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, memory)
            tap = await _in_thread(lambda: self._taps.reopen(index))
            await self._launch(folder, folder.parts(), Origin(memory=memory, frozen=folder.frozen), tap)

    async def save(self, folder: Folder, target: Path) -> Memory | None:
        """Write a halted machine's state to a folder. What is returned has to be written there as its
        memory, when the machine may go on again; None is written already."""
        await self.vmm.save(folder.sockets, target)
        process = folder.process()
        if not self.vmm.takes_memory:
            return None
        if process is None:
            raise RuntimeFailure("the machine has no process")
        return await _in_thread(lambda: Memory(process, folder.parts().hardware.memory_bytes, target))

    def _prepare(self, folder: Folder, parts: Parts, origin: Origin) -> int:
        folder.create(parts)
        if origin.disk is not None:
            disks.copy(origin.disk, folder.disk)
        slot, tap = self._taps.take()
        folder.slot.write_text(str(slot.index))
        return tap

    async def _launch(self, folder: Folder, parts: Parts, origin: Origin, tap: int) -> None:
        with ExitStack() as stack:
            stack.callback(os.close, tap)
            state = None
            if origin.frozen is not None:
                state = os.open(origin.frozen / STATE, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, state)
            plan = _plan(folder, parts, origin, self.slot(folder), (tap, state))
            begun = time.monotonic()
            process = await self.vmm.start(plan)
        folder.note(process)
        await self.lines(folder.name)
        started = time.monotonic()
        if plan.incoming is not None:
            await self.vmm.load(plan)
        log.info(
            "microvm.launched",
            machine=folder.name,
            process_ms=round((started - begun) * 1000, 1),
            load_ms=round((time.monotonic() - started) * 1000, 1),
        )

    async def rename(self, old: Folder, name: str) -> Folder:
        """Give a machine another name, and with it another owner."""
        new = self.folders.of(name)
        old.rename(new)
        self._lines[name] = self._lines.pop(old.name)
        return new

    async def kill(self, name: str) -> None:
        """End the monitor, if it is there, and hang up. The folder stays."""
        process = self.folders.of(name).process()
        lines = self._lines.pop(name, None)
        if lines:
            await lines.close()
        if process:
            await _in_thread(lambda: processes.kill(process))

    async def remove(self, name: str) -> None:
        """End the machine and remove every trace. Idempotent."""
        await self.kill(name)
        folder = self.folders.of(name)
        await _in_thread(lambda: self._forget(folder))

    def _forget(self, folder: Folder) -> None:
        index = folder.index()
        if index is not None:
            self._taps.release(index)
        folder.remove()

    async def hang_up(self, name: str) -> None:
        """Close the lines to a machine that goes on. Idempotent."""
        lines = self._lines.pop(name, None)
        if lines:
            await lines.close()

    def besides(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this while others go on; it ends with this object at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Hang up everywhere; the machines go on."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for name in list(self._lines):
            await self.hang_up(name)


def _plan(folder: Folder, parts: Parts, origin: Origin, slot: Slot, opened: tuple[int, int | None]) -> Plan:
    tap, state = opened
    return Plan(
        hardware=parts.hardware,
        kernel=parts.kernel,
        initramfs=parts.initramfs,
        image_disk=parts.image_disk,
        own_disk=folder.disk,
        sockets=folder.sockets,
        log=folder.monitor_log,
        tap=tap,
        memory=origin.memory,
        private_memory=origin.private,
        incoming=state,
        frozen=origin.frozen,
        interface=slot.interface,
        uid=_UID_BASE + slot.index,
    )


async def _in_thread(work: Callable[[], T]) -> T:
    """Run in a thread. A thread cannot be stopped half-way, so cancellation waits for its end."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
