# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pausing to disk: the machine's whole state goes into a file, and its memory and process are given back.

The state file appears under its name only when it is complete, and is removed only when the machine
runs again. So whatever is killed in between, the sandbox is either running or paused.
"""

from __future__ import annotations

import asyncio
import os

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
        partial = folder.state.with_name("state.partial")
        vmm = self._machines.vmm
        await vmm.halt(folder.sockets)
        try:
            with partial.open("wb") as state:
                await vmm.save(folder.sockets, state.fileno(), whole=True)
        except BaseException:
            partial.unlink(missing_ok=True)
            await asyncio.shield(vmm.go(folder.sockets))
            raise
        self._watch.drop(sandbox_id)
        partial.rename(folder.state)
        await self._machines.kill(sandbox_id)
        await asyncio.to_thread(self._network.silent, sandbox_id)
        await asyncio.to_thread(_settle, folder)

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Start a monitor from the state, at the same address, and tell the guest what time it is."""
        folder = self._machines.folders.of(sandbox_id)
        state = os.open(folder.state, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self._machines.restart(folder, state)
            await asyncio.to_thread(self._network.again, folder)
            await self._wake(folder, handle)
        except BaseException:
            await asyncio.shield(self._machines.kill(sandbox_id))
            await asyncio.shield(asyncio.to_thread(self._network.silent, sandbox_id))
            raise
        finally:
            os.close(state)
        folder.state.unlink()
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


def _settle(folder: Folder) -> None:
    """Have the paused machine on disk for good: it shall outlive a loss of power."""
    for path in (folder.state, folder.disk, folder.path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
