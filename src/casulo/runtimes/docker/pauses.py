# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pausing containers in memory, by the engine."""

from __future__ import annotations

from casulo.model.errors import Code
from casulo.model.sandbox import Handle
from casulo.runtimes.docker.engine import Engine, explained, to_its_end


class DockerPause:
    """Freezing with the engine's own pause: processes stay in memory and get no CPU time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Freeze every process of the container."""
        with explained("pause the container", Code.SANDBOX_PAUSE_FAILED):
            await to_its_end(self._engine.container(str(handle.data["container"])).pause())

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Thaw every process of the container."""
        await self.thaw(str(handle.data["container"]))

    async def thaw(self, name: str) -> None:
        """Thaw by the container's name or id."""
        with explained("resume the container", Code.SANDBOX_RESUME_FAILED):
            await to_its_end(self._engine.container(name).unpause())
