# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines of a pool: restored and, where they are emulated, rehearsed; they stand still and cost no time.

They run nothing of anybody. What a killed server leaves of them has no row, and is removed at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from casulo.model.errors import RuntimeFailure, TimedOut
from casulo.model.sandbox import Handle, Resources, Spec
from casulo.runtimes import bootchannel, processtree
from casulo.runtimes.base import Deaf
from casulo.runtimes.local import watch
from casulo.runtimes.local.roots import Root
from casulo.runtimes.microvm.booting import Booting
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.processes import is_alive
from casulo.runtimes.microvm.spares import Spares
from casulo.runtimes.microvm.templates import Recipe, Templates

_ANSWER_SECONDS = 15.0
"""Many times what an emulated machine on a busy host takes for it."""

_DYING_SECONDS = 1.0

Take = Callable[[str], tuple[Root, Recipe]]
"""What was provided for a sandbox, now the caller's."""

Confine = Callable[[str, Resources], None]
"""Puts the host's limits on a machine's monitor. Blocks."""

Follow = Callable[[str], None]
"""Watches a sandbox's monitor from now on."""


class MicrovmParking:
    """Keeps machines that stand still until somebody asks for them."""

    def __init__(
        self,
        sources: tuple[Templates, Spares, Machines],
        booting: Booting,
        take: Take,
        confine: Confine,
        follow: Follow,
    ) -> None:
        self._templates, self._spares, self._machines = sources
        self._booting = booting
        self._take = take
        self._confine = confine
        self._follow = follow
        self._parked: dict[str, tuple[Folder, Root]] = {}

    def can(self, spec: Spec) -> bool:
        """Whatever does not go on from somebody's memory."""
        return spec.snapshot_id is None

    async def park(self, sandbox_id: str, spec: Spec) -> None:
        """Restore a machine from the template of what was provided."""
        root, recipe = self._take(sandbox_id)
        spare = await self._spares.prepared(await self._templates.get(recipe))
        try:
            folder = await self._machines.rename(spare, sandbox_id)
        except BaseException:
            await asyncio.shield(self._machines.remove(spare.name))
            raise
        try:
            await asyncio.to_thread(self._confine, sandbox_id, spec.resources)
        except BaseException:
            await asyncio.shield(self._machines.remove(sandbox_id))
            raise
        self._parked[sandbox_id] = folder, root

    async def adopt(self, sandbox_id: str, spec: Spec) -> Handle:
        """Tell it what it is, and wait until its daemon is ready."""
        if not self.ready(sandbox_id):
            raise Deaf(f"{sandbox_id} is not parked any more")
        folder, root = self._parked.pop(sandbox_id)
        try:
            # A monitor that somebody stopped takes no calls, and says nothing of it.
            async with asyncio.timeout(bootchannel.start_limit(_ANSWER_SECONDS, spec)):
                handle = await self._booting.boot(folder, spec, root, _ANSWER_SECONDS)
        except (TimeoutError, TimedOut) as error:
            raise Deaf(f"{sandbox_id} did not answer in time") from error
        except RuntimeFailure as error:
            if await asyncio.to_thread(_ends, folder):
                raise Deaf(f"the machine of {sandbox_id} ended: {error.message}") from error
            raise
        self._follow(sandbox_id)
        return handle

    def ready(self, sandbox_id: str) -> bool:
        """Its monitor is there and was not stopped; a machine that stands still cannot be asked."""
        parked = self._parked.get(sandbox_id)
        return parked is not None and _alive(parked[0])

    def forget(self, sandbox_id: str) -> None:
        """It is being removed. Idempotent."""
        self._parked.pop(sandbox_id, None)


def _alive(folder: Folder) -> bool:
    process = folder.process()
    return process is not None and is_alive(process) and not processtree.is_stopped(process.pid)


def _ends(folder: Folder) -> bool:
    """A process that is being killed is there for a moment, and refuses whoever calls."""
    process = folder.process()
    return process is None or watch.await_end(process.pid, process.started, _DYING_SECONDS)
