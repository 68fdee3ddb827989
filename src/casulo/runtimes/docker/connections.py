# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How each container is connected: by a cable of this server where that can be, else by the engine's network.

Only behind a cable can a network policy be enforced. It takes an engine on this machine, a server that is
root here, and an OCI runtime whose containers use the host's network stack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casulo.model.errors import Code, Unsupported
from casulo.model.policy import NetworkPolicy
from casulo.model.sandbox import EXECD_PORT, Spec
from casulo.network.filter import host_resolvers
from casulo.runtimes.docker import choice
from casulo.runtimes.docker.cables import Cables
from casulo.runtimes.docker.engine import About
from casulo.runtimes.docker.network import Network
from casulo.runtimes.docker.settings import DockerSettings

_NO_NETWORK = "none"


@dataclass(frozen=True)
class Connection:
    """What the plan of a container says about it."""

    network: str
    publish: str = ""
    resolvers: tuple[str, ...] = ()
    address: str = ""


class Connections:
    """Those of all containers of one server; open between `open` and `close`."""

    def __init__(self, network: Network, cables: Cables, settings: DockerSettings, about: About) -> None:
        self._network = network
        self._cables = cables
        self._settings = settings
        self._about = about
        self.no_cables = _why_none(network, settings)
        """Why no container gets a cable; empty when they do."""

    async def open(self) -> None:
        """Set up, and go on with what an earlier server left."""
        if not self.no_cables:
            await asyncio.to_thread(self._cables.open)

    async def close(self, last: bool) -> None:
        """Give back what no sandbox uses."""
        if not self.no_cables:
            await asyncio.to_thread(self._cables.close, last)

    def why_no_policy(self, runtime: str) -> str:
        """Why a container of this OCI runtime can be under no policy; empty when it can."""
        if self.no_cables or choice.shares_kernel(runtime, self._about):
            return self.no_cables
        name = runtime or self._about.default_runtime
        return f"the OCI runtime {name} brings a network of its own, before which no policy can stand"

    def check(self, spec: Spec) -> None:
        """Refuse a policy that could not be enforced."""
        if spec.network_policy is None:
            return
        if why := self.why_no_policy(choice.runtime_of(spec, self._settings, self._about)):
            raise Unsupported(
                f"networkPolicy: {why}",
                code=Code.NETWORK_POLICY_NOT_SUPPORTED,
                hint="leave the policy out, or choose another runtime or isolation",
            )

    async def make(self, sandbox_id: str, spec: Spec) -> Connection:
        """What the container is to be told. A cable is under its policy from now on."""
        if self.why_no_policy(choice.runtime_of(spec, self._settings, self._about)):
            return Connection(self._network.name, self._network.publish)
        policy = spec.network_policy
        slot = await asyncio.to_thread(self._cables.make, sandbox_id, policy)
        resolvers = (slot.gateway,) if policy is not None else host_resolvers()
        return Connection(_NO_NETWORK, "", tuple(map(str, resolvers)), str(slot.address))

    def finish(self, sandbox_id: str, container_id: str, pid: int) -> None:
        """Connect a container that has started, before anything in it can be the user's. Blocks."""
        if self._has_cable(sandbox_id):
            self._cables.plug(sandbox_id, pid, container_id)
        else:
            self._network.keep_apart()

    async def address(self, sandbox_id: str, container: Mapping[str, Any]) -> tuple[str, int]:
        """Where the daemon of a running container listens, tried out."""
        slot = None if self.no_cables else self._cables.slot(sandbox_id)
        if slot is None:
            return await self._network.address(container)
        return await self._network.tried_out(str(slot.address), EXECD_PORT)

    def police(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a sandbox under another policy. Blocks."""
        self._cables.police(sandbox_id, policy)

    async def release(self, sandbox_id: str) -> None:
        """The container is gone. Idempotent."""
        if not self.no_cables:
            await asyncio.to_thread(self._cables.release, sandbox_id)

    def sandboxes(self) -> set[str]:
        """Ids of all sandboxes with a cable, or what is left of one."""
        return set() if self.no_cables else self._cables.sandboxes()

    def _has_cable(self, sandbox_id: str) -> bool:
        return not self.no_cables and self._cables.slot(sandbox_id) is not None


def _why_none(network: Network, settings: DockerSettings) -> str:
    if not network.shares_machine:
        return "policies are enforced by this host, and the engine is on another one"
    if network.unfiltered:
        return f"no policy can be enforced: {network.unfiltered}"
    if settings.reach == "published":
        return 'no policy can be enforced: [docker] reach = "published" leaves the network to the engine'
    return ""
