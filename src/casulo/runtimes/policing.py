# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies enforced by this host: the ability that runtimes offer to `control`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from casulo.images import daemon
from casulo.model.errors import NotFound
from casulo.model.policy import NetworkPolicy
from casulo.network.egress.egress import Egress
from casulo.network.egress.log import log_lines
from casulo.network.egress.place import Place
from casulo.network.egress.settings import EgressSettings
from casulo.network.instance import instance_of


def host_egress(settings: EgressSettings, data: Path) -> Egress:
    """Egress for the server with this data directory."""
    instance = instance_of(data)
    place = Place(
        instance=instance,
        run=Path("/run/casulo") / instance / "egress",
        data=data / "egress",
        binary=daemon.egress_binary(daemon.host_architecture()),
    )
    return Egress(settings, place)


class HostEgress:
    """Passes on to the egress process, in worker threads."""

    def __init__(self, egress: Egress, police: Callable[[str, NetworkPolicy], None]) -> None:
        self._egress = egress
        self._police = police

    async def apply(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a live sandbox under another policy."""
        await asyncio.to_thread(self._police, sandbox_id, policy)

    async def arm(self, sandbox_id: str, vault: Mapping[str, Any] | None) -> None:
        """Give its requests other credentials."""
        await asyncio.to_thread(self._egress.arm, sandbox_id, vault)

    async def state(self, sandbox_id: str) -> dict[str, Any]:
        """Counts and the last failure; nothing of a sandbox that has no interface at this time."""
        try:
            return await asyncio.to_thread(self._egress.state, sandbox_id)
        except NotFound:
            return {}

    async def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The destinations that it was allowed to reach."""
        return await asyncio.to_thread(self._egress.seen, sandbox_id)

    async def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        """What would become of a request."""
        return await asyncio.to_thread(self._egress.test, sandbox_id, url, method)

    async def log(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
        """Lines of the audit log."""
        async for line in log_lines(self._egress.place.socket, sandbox_id, follow=follow):
            yield line
