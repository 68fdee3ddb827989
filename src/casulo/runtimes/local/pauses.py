# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pausing local sandboxes: frozen in memory, or put on disk where they were made for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from casulo.model.sandbox import Handle, Isolation
from casulo.runtimes.local import checkpoints
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.host import Host
from casulo.runtimes.local.starting import Starter
from casulo.runtimes.local.watch import Watch

Finish = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs in a worker thread; a caller who is cancelled waits for its end."""

Ended = Callable[[str], None]
"""Called with a sandbox that turns out to be gone."""


class LocalPause:
    """The ability that the local runtime offers."""

    def __init__(self, host: Host, starter: Starter, watcher: Watch, finish: Finish, ended: Ended) -> None:
        self._host = host
        self._starter = starter
        self._watch = watcher
        self._finish = finish
        self._ended = ended

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Freeze every process of the sandbox, or put them all on disk."""
        folder, group = self._folder(sandbox_id), self._host.group(sandbox_id)
        if not await asyncio.to_thread(folder.goes_to_disk.exists):
            await asyncio.to_thread(group.freeze, True)
            return
        await self.put_down(folder, handle)
        await self._finish(lambda: checkpoints.sync(folder))

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Let every process of the sandbox go on."""
        folder, group = self._folder(sandbox_id), self._host.group(sandbox_id)
        if await asyncio.to_thread(folder.memory.exists):
            await self.pick_up(folder, handle)
        else:
            await asyncio.to_thread(group.freeze, False)

    async def put_down(self, folder: Folder, handle: Handle) -> None:
        """To the disk. On an error it is watched as before, if it is still there."""
        sandbox_id, group = folder.path.name, self._host.group(folder.path.name)
        self._watch.drop(sandbox_id)  # its end is no news
        try:
            await self._finish(lambda: checkpoints.put_down(folder, self._engine, group, handle))
        except BaseException:
            self._watched(folder, handle)
            raise

    async def pick_up(self, folder: Folder, handle: Handle) -> None:
        """From the disk."""
        engine, starter, group = self._engine, self._starter, self._host.group(folder.path.name)
        await self._finish(lambda: checkpoints.pick_up(folder, engine, group, starter, handle))
        self._watched(folder, handle)

    async def settle(self, sandbox_id: str, handle: Handle) -> bool:
        """Finish what a killed server began; whether the sandbox is on disk."""
        folder, group = self._folder(sandbox_id), self._host.group(sandbox_id)
        return await asyncio.to_thread(lambda: checkpoints.settle(folder, self._engine, group, handle))

    def _watched(self, folder: Folder, handle: Handle) -> None:
        if not self._watch.add(folder.path.name, *checkpoints.process_of(folder, handle)):
            asyncio.get_running_loop().call_soon(self._ended, folder.path.name)

    @property
    def _engine(self) -> Engine:
        return self._host.engine(Isolation.GVISOR)

    def _folder(self, sandbox_id: str) -> Folder:
        return Folder(self._host.sandboxes / sandbox_id)
