# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies of the local runtime's sandboxes: the ability that it offers to `control`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from casulo.images import daemon
from casulo.model.policy import NetworkPolicy
from casulo.network.egress.egress import Egress
from casulo.network.egress.log import log_lines
from casulo.network.egress.place import Place
from casulo.network.egress.settings import EgressSettings
from casulo.network.instance import instance_of, table_of
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.networks import Network


def local_egress(settings: EgressSettings, data: Path) -> Egress:
    """Egress for the server with this data directory."""
    instance = instance_of(data)
    place = Place(
        instance=instance,
        run=Path("/run/casulo") / instance / "egress",
        data=data / "egress",
        binary=daemon.egress_binary(daemon.host_architecture()),
        baseline=table_of(instance),
    )
    return Egress(settings, place)


class LocalEgress:
    """Passes on to the egress process, in worker threads."""

    def __init__(self, egress: Egress, network: Network, folder: Callable[[str], Folder]) -> None:
        self._egress = egress
        self._network = network
        self._folder = folder

    async def apply(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a live sandbox under another policy."""
        await asyncio.to_thread(self._network.police, self._folder(sandbox_id), policy)

    async def state(self, sandbox_id: str) -> dict[str, Any]:
        """Counts and the last failure."""
        return await asyncio.to_thread(self._egress.state, sandbox_id)

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
