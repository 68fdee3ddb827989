# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines that were restored ahead of the next create and stand still until then."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict

import structlog

from casulo.model.errors import CasuloError
from casulo.runtimes.microvm import identity, rehearsal
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.processes import is_alive
from casulo.runtimes.microvm.templates import Template, Templates

PREFIX = "spare-"
_MOST_TEMPLATES = 2
_REST_SECONDS = 1.0
"""Before another one is made: the sandbox just started needs the processor for its first command."""

_REHEARSE_SECONDS = 60.0
log = structlog.get_logger(__name__)


class Spares:
    """Up to `wanted` machines for each of the templates used last."""

    def __init__(self, templates: Templates, machines: Machines, wanted: int) -> None:
        self._templates = templates
        self._machines = machines
        self._wanted = wanted
        self._ready: OrderedDict[str, list[Folder]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    async def take(self, template: Template) -> Folder:
        """A machine that stands still, now its caller's; there will be another one later."""
        ready = self._ready.setdefault(template.key, [])
        self._ready.move_to_end(template.key)
        while ready:
            folder = ready.pop()
            process = folder.process()
            if process and is_alive(process):
                return folder
            await self._machines.remove(folder.name)
        return await self._templates.restore(template, _name())

    def refill(self, template: Template) -> None:
        """Restore another one behind the scenes."""
        task = asyncio.get_running_loop().create_task(self._refill(template))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refill(self, template: Template) -> None:
        await asyncio.sleep(_REST_SECONDS)
        async with self._turn:
            ready = self._ready.setdefault(template.key, [])
            try:
                while len(ready) < self._wanted:
                    ready.append(await self.prepared(template))
                while len(self._ready) > _MOST_TEMPLATES:
                    _, old = self._ready.popitem(last=False)
                    await self._remove(old)
            except (CasuloError, OSError) as error:
                log.warning("microvm.no_spare", error=str(error))

    async def prepared(self, template: Template) -> Folder:
        """A machine that stands still and is the caller's; one that is emulated has rehearsed."""
        folder = await self._templates.restore(template, _name())
        if self._machines.vmm.accelerator == "tcg":
            try:
                await self._rehearse(folder)
            except BaseException:
                await asyncio.shield(self._machines.remove(folder.name))
                raise
        return folder

    async def _rehearse(self, folder: Folder) -> None:
        """Emulated code is translated when it runs first; have that behind before somebody waits."""
        link = (await self._machines.lines(folder.name)).link
        slot = self._machines.slot(folder)
        who = identity.make(folder.name, "", "casulo", slot, [])
        part = rehearsal.Part(str(slot.address), secrets.token_urlsafe(24))
        order = {"identity": who, "document": part.document(folder.name).body()}
        asking = asyncio.ensure_future(link.ask("rehearse", _REHEARSE_SECONDS, **order))
        await self._machines.vmm.go(folder.sockets)
        await asking
        await asyncio.to_thread(part.play)
        await link.ask("rehearsed", _REHEARSE_SECONDS)
        await self._machines.vmm.halt(folder.sockets)

    async def close(self) -> None:
        """Remove all that nobody took."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._ready:
            await self._remove(self._ready.popitem()[1])

    async def _remove(self, folders: list[Folder]) -> None:
        for folder in folders:
            await self._machines.remove(folder.name)


def _name() -> str:
    return PREFIX + secrets.token_hex(6)
