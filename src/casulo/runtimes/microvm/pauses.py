# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pausing to disk: the machine's whole state goes into a file, and its memory and process are given back.

The state's folder appears under its name only when it is complete, and is removed only when the machine
runs again. So whatever is killed in between, the sandbox is either running or paused.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import structlog

from casulo.model.errors import Code, RuntimeFailure
from casulo.model.sandbox import Handle
from casulo.runtimes.local import watch
from casulo.runtimes.microvm import clock, identity
from casulo.runtimes.microvm.capture import Memory
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.networking import Networking
from casulo.runtimes.microvm.vmm import MEMORY

_RENEW_SECONDS = 30.0
_WRITTEN_SECONDS = 6.0
_PAUSE_SECONDS = 0.1
log = structlog.get_logger(__name__)


class MicrovmPause:
    """The ability to pause machines."""

    def __init__(self, machines: Machines, watching: watch.Watch, network: Networking) -> None:
        self._machines = machines
        self._network = network
        self._watch = watching

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Write the state and end the monitor."""
        folder = self._machines.folders.of(sandbox_id)
        partial = _partial(folder)
        vmm = self._machines.vmm
        await vmm.halt(folder.sockets)
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of a server that was killed while it saved
            partial.mkdir(mode=0o700)
            memory = await self._machines.save(folder, partial)
            if memory is not None:
                await asyncio.to_thread(_write, memory, partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            await asyncio.shield(vmm.go(folder.sockets))
            raise
        self._watch.drop(sandbox_id)
        partial.rename(folder.frozen)
        await self._put_away(folder)

    async def _put_away(self, folder: Folder) -> None:
        await self._machines.kill(folder.name)
        await asyncio.to_thread(self._network.silent, folder.name)
        await asyncio.to_thread(_keep, folder)

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Start a monitor from the state, at the same address, and tell the guest what time it is."""
        folder = self._machines.folders.of(sandbox_id)
        try:
            await self._machines.restart(folder)
            await asyncio.to_thread(self._network.again, folder)
            await self._wake(folder, handle)
        except BaseException:
            await asyncio.shield(self._machines.kill(sandbox_id))
            await asyncio.shield(asyncio.to_thread(self._network.silent, sandbox_id))
            raise
        await asyncio.to_thread(_forget, folder)
        process = folder.process()
        if process is None or not self._watch.add(sandbox_id, process.pid, process.started):
            raise RuntimeFailure("the machine ended as soon as it ran", code=Code.SANDBOX_RESUME_FAILED)

    async def settle(self, sandbox_id: str) -> bool:
        """Finish what a killed server began with a machine that has a monitor; whether it runs then.

        It may stand still in the middle of a pause, a resume or a snapshot.
        """
        folder = self._machines.folders.of(sandbox_id)
        runs = await self._machines.vmm.runs(folder.sockets)
        if folder.frozen.exists() and not runs:
            self._watch.drop(sandbox_id)
            await self._put_away(folder)
            return False
        await asyncio.to_thread(_forget, folder)
        if not runs:
            log.warning("microvm.thawed_after_crash", sandbox=sandbox_id)
            await self._go_on(folder)
        return True

    async def _go_on(self, folder: Folder) -> None:
        """A state that is being written for nobody has to be at its end first."""
        deadline = time.monotonic() + _WRITTEN_SECONDS
        while True:
            try:
                await self._machines.vmm.go(folder.sockets)
                break
            except RuntimeFailure:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        self._machines.besides(clock.keep_right((await self._machines.lines(folder.name)).link))

    async def _wake(self, folder: Folder, handle: Handle) -> None:
        link = (await self._machines.lines(folder.name)).link
        hostname = f"casulo-{folder.name[:8]}"
        resolvers = self._network.resolvers(folder)
        who = identity.make(folder.name, handle.token, hostname, self._machines.slot(folder), resolvers)
        asking = asyncio.ensure_future(link.ask("renew", _RENEW_SECONDS, identity=who))
        await self._machines.vmm.go(folder.sockets)
        await asking
        self._machines.besides(clock.keep_right(link))


def _partial(folder: Folder) -> Path:
    return folder.frozen.with_name("frozen.partial")


def _write(memory: Memory, target: Path) -> None:
    try:
        memory.write(target / MEMORY)
    finally:
        memory.close()


def _forget(folder: Folder) -> None:
    """In one step, so that a state without its memory is never taken for a paused machine. Idempotent."""
    old = folder.frozen.with_name("frozen.old")
    shutil.rmtree(old, ignore_errors=True)  # of a server that was killed here
    if folder.frozen.exists():
        folder.frozen.rename(old)
    for path in (old, _partial(folder)):
        shutil.rmtree(path, ignore_errors=True)


def _keep(folder: Folder) -> None:
    """Have the paused machine on disk for good: it shall outlive a loss of power."""
    for path in (*folder.frozen.iterdir(), folder.frozen, folder.disk, folder.path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
