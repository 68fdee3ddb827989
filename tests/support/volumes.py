# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server that allows one directory of its host, and what tests of volumes ask of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casulo.client import (
    AsyncClient,
    AsyncSandbox,
    CasuloError,
    Volume,
)
from support.server import Server


@dataclass
class Place:
    """A server that allows `allowed`, and a directory beside it that it does not."""

    server: Server
    client: AsyncClient
    allowed: Path
    outside: Path

    async def start(self, *volumes: Volume, **more: Any) -> AsyncSandbox:
        return await AsyncSandbox.create(volumes=volumes, client=self.client, **more)

    async def said(self, script: str, *volumes: Volume, **more: Any) -> str:
        """What a shell in a sandbox with these volumes prints; the sandbox is gone afterwards."""
        async with await self.start(*volumes, **more) as box:
            return (await box.commands.run(script)).check().stdout

    async def refused(self, code: str, *volumes: Volume) -> CasuloError:
        with pytest.raises(CasuloError) as caught:
            await self.start(*volumes)
        assert caught.value.code == code, caught.value
        return caught.value

    def named(self, name: str) -> Path:
        """Where the server keeps a named volume."""
        return self.server.data_dir / "volumes" / name

    def kept(self) -> set[str]:
        """Everything that there is of named volumes, half made ones too."""
        return set(os.listdir(self.server.data_dir / "volumes"))
