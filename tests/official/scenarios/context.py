# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where a scenario's server is, and short cuts to make clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.sync import SandboxSync


@dataclass(frozen=True)
class Context:
    """One server, one channel: direct, or through the server's proxy; what the server may mount."""

    domain: str
    api_key: str
    proxy: bool
    folder: str = ""
    image: str = "host"

    def config(self, **options: Any) -> ConnectionConfig:
        return ConnectionConfig(
            domain=self.domain,
            api_key=self.api_key,
            use_server_proxy=self.proxy,
            request_timeout=timedelta(seconds=20),
            **options,
        )

    def sync_config(self) -> ConnectionConfigSync:
        return ConnectionConfigSync(
            domain=self.domain,
            api_key=self.api_key,
            use_server_proxy=self.proxy,
            request_timeout=timedelta(seconds=20),
        )

    @asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[Sandbox]:
        """A sandbox that is gone afterwards, whatever happens."""
        created = await Sandbox.create(self.image, connection_config=self.config(), **options)
        try:
            yield created
        finally:
            await created.destroy()

    @contextmanager
    def sync_sandbox(self, **options: Any) -> Iterator[SandboxSync]:
        created = SandboxSync.create(self.image, connection_config=self.sync_config(), **options)
        try:
            yield created
        finally:
            created.destroy()

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[SandboxManager]:
        manager = await SandboxManager.create(connection_config=self.config())
        try:
            yield manager
        finally:
            await manager.close()
