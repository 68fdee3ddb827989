# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server on the Docker runtime with its engine at hand, and short ways to sandboxes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casulo.client import AsyncClient, AsyncSandbox
from support.engine import BUSYBOX, Engine
from support.server import Server


@dataclass
class Place:
    """A server, its engine, and a directory that sandboxes may mount."""

    server: Server
    engine: Engine
    client: AsyncClient
    allowed: Path

    async def start(self, image: str = BUSYBOX, **more: Any) -> AsyncSandbox:
        return await AsyncSandbox.create(image, client=self.client, **more)

    def container(self, box: AsyncSandbox) -> str:
        """The name of a sandbox's container."""
        names = self.engine.docker("ps", "--all", "--format", "{{.Names}}").split()
        return next(name for name in names if name.endswith(box.id))


async def said(box: AsyncSandbox, *command: str) -> str:
    """What a program of the sandbox prints, started without a shell."""
    done = await box.commands.run(list(command))
    assert done.exit_code == 0, done
    return done.stdout.strip()
