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

from casulo.model.errors import Code, RuntimeFailure
from casulo.model.sandbox import Handle
from casulo.runtimes.local import watch
from casulo.runtimes.microvm import clock, identity
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.networking import Networking

_RENEW_SECONDS = 30.0


class MicrovmPause:
    """The ability to pause machines."""

    def __init__(self, machines: Machines, watching: watch.Watch, network: Networking) -> None:
        self._machines = machines
        self._network = network
        self._watch = watching

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Write the state and end the monitor."""
        folder = self._machines.folders.of(sandbox_id)
        partial = folder.frozen.with_name("frozen.partial")
        vmm = self._machines.vmm
        await vmm.halt(folder.sockets)
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of a server that was killed while it saved
            partial.mkdir(mode=0o700)
            await vmm.save(folder.sockets, partial, whole=True)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            await asyncio.shield(vmm.go(folder.sockets))
            raise
        self._watch.drop(sandbox_id)
        partial.rename(folder.frozen)
        await self._machines.kill(sandbox_id)
        await asyncio.to_thread(self._network.silent, sandbox_id)
        await asyncio.to_thread(_settle, folder)

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

    async def _wake(self, folder: Folder, handle: Handle) -> None:
        link = (await self._machines.lines(folder.name)).link
        hostname = f"casulo-{folder.name[:8]}"
        resolvers = self._network.resolvers(folder)
        who = identity.make(folder.name, handle.token, hostname, self._machines.slot(folder), resolvers)
        asking = asyncio.ensure_future(link.ask("renew", _RENEW_SECONDS, identity=who))
        await self._machines.vmm.go(folder.sockets)
        await asking
        self._machines.besides(clock.keep_right(link))


def _forget(folder: Folder) -> None:
    """In one step, so that a state without its memory is never taken for a paused machine."""
    old = folder.frozen.with_name("frozen.old")
    folder.frozen.rename(old)
    shutil.rmtree(old)


def _settle(folder: Folder) -> None:
    """Have the paused machine on disk for good: it shall outlive a loss of power."""
    for path in (*folder.frozen.iterdir(), folder.frozen, folder.disk, folder.path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
