# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The network that containers join, what they may reach from it, and how the server reaches them.

Where engine and server share a network the server filters the packets of the bridge by the same rules
as those of local sandboxes. Elsewhere the engine's own separation is all there is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
from collections.abc import Mapping
from contextlib import closing
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import urlsplit

import structlog
from pyroute2.netlink.exceptions import NetlinkError

from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.network.bridge import isolate_ports
from casulo.network.filter import Filter, host_resolvers
from casulo.runtimes.docker.engine import Absent, Busy, Engine, explained
from casulo.runtimes.docker.plan import PORT, Names
from casulo.runtimes.docker.settings import DockerSettings

_CONNECT_SECONDS = 8.0
_ANY = ("", "0.0.0.0", "::")
_log = structlog.get_logger(__name__)


class Network:
    """Open between `open` and `close`; `name` and `direct` are valid then."""

    def __init__(self, engine: Engine, names: Names, settings: DockerSettings) -> None:
        self._engine = engine
        self._names = names
        self._settings = settings
        self._filtered = False
        self.shares_machine = False
        self.name = settings.network or names.network
        self.direct = False
        self.unfiltered = ""
        """Why the server does not filter what sandboxes may reach; empty when it does."""

    @property
    def publish(self) -> str:
        """The engine's address at which ports are published; empty when none need to be."""
        return "" if self.direct else self._settings.publish_address

    async def open(self) -> None:
        """Find or make it. Unsupported says what is wrong with it."""
        found = await self._find()
        if found is None:
            if self._settings.network:
                raise Unsupported(
                    f"[docker] network: the engine has no network {self.name!r}",
                    code=Code.HOST_UNSUPPORTED,
                    hint="make it with `docker network create`, or leave the setting out",
                )
            await self._make()
            found = await self._find() or {}
        self.shares_machine = self._is_shared(found)
        self.direct = self._is_direct(found)
        self.unfiltered = self._why_unfiltered(found)
        if not self.unfiltered:
            await asyncio.to_thread(self._filter, IPv4Network(_ipam(found)["Subnet"]))
            self._filtered = True

    async def close(self, last: bool) -> None:
        """Remove what was made when it was the `last` user."""
        if not last or self._settings.network:
            return
        try:
            with explained("remove the network"):
                await (await self._engine.docker.networks.get(self.name)).delete()
        except (Absent, Busy, RuntimeFailure) as reason:
            _log.info("docker.network_kept", network=self.name, reason=reason.message)
            return
        if self._filtered:
            await asyncio.to_thread(self._unfilter)

    async def _find(self) -> dict[str, Any] | None:
        try:
            with explained("look at a network", Code.HOST_UNSUPPORTED):
                return dict(await (await self._engine.docker.networks.get(self.name)).show())
        except Absent:
            return None

    async def _make(self) -> None:
        body: dict[str, Any] = {
            "Name": self.name,
            "Driver": "bridge",
            "CheckDuplicate": True,
            "Labels": self._names.labels,
            "Options": {
                "com.docker.network.bridge.name": self._names.bridge,
                "com.docker.network.bridge.enable_icc": "false",
            },
        }
        if self._settings.subnet:
            body["IPAM"] = {"Config": [{"Subnet": str(self._settings.subnet)}]}
        with explained("make a network for sandboxes", Code.HOST_UNSUPPORTED):
            await self._engine.docker.networks.create(body)

    def _is_shared(self, network: Mapping[str, Any]) -> bool:
        """A socket alone proves nothing: the engine may be in a virtual machine or another namespace."""
        same_kernel = self._engine.about.kernel == platform.release()
        return self._settings.is_socket and same_kernel and _is_own_address(_ipam(network).get("Gateway", ""))

    def _is_direct(self, network: Mapping[str, Any]) -> bool:
        if self._settings.reach != "auto":
            return self._settings.reach == "direct"
        return self.shares_machine

    def _why_unfiltered(self, network: Mapping[str, Any]) -> str:
        if self._settings.network:
            return "[docker] network names one that is used as it is"
        if not _is_own_address(_ipam(network).get("Gateway", "")):
            return "the engine's network is not this machine's"
        if os.geteuid() != 0:
            return "only a server run by root can filter the engine's packets"
        return ""

    def _filter(self, subnet: IPv4Network) -> None:
        table = f"casulo_{self._names.instance}_docker"
        resolvers = host_resolvers()
        Filter(table, self._names.bridge, subnet, resolvers, self._settings.outbound).apply()

    def _unfilter(self) -> None:
        table = f"casulo_{self._names.instance}_docker"
        Filter(table, self._names.bridge, IPv4Network("0.0.0.0/0"), (), False).remove()

    def keep_apart(self) -> None:
        """Let nothing pass between two containers on the bridge: such packets never reach the filter.

        To be called when a container has started, before anything in it can be the user's.
        """
        if not self._filtered:
            return
        try:
            isolate_ports(self._names.bridge)
        except (OSError, NetlinkError) as error:
            raise RuntimeFailure(
                f"the containers on {self._names.bridge} cannot be kept apart: {error}",
                code=Code.SANDBOX_START_FAILED,
            ) from error

    async def address(self, container: Mapping[str, Any]) -> tuple[str, int]:
        """Where the daemon of a running container listens, tried out."""
        try:
            host, port = self._direct(container) if self.direct else self._published(container)
        except (KeyError, IndexError, ValueError) as error:
            raise RuntimeFailure(
                "Docker gave the container no address", code=Code.SANDBOX_START_FAILED
            ) from error
        return await self.tried_out(host, port)

    async def tried_out(self, host: str, port: int) -> tuple[str, int]:
        """The same address, where somebody listens."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await _try_out(host, port)
        except (OSError, TimeoutError) as error:
            other = "published" if self.direct else "direct"
            raise RuntimeFailure(
                f"the sandbox runs, but this server does not reach it at {host}:{port}: {error}",
                code=Code.SANDBOX_START_FAILED,
                hint=f'set [docker] reach = "{other}", or connect_address to where published ports are',
            ) from error
        return host, port

    def _direct(self, container: Mapping[str, Any]) -> tuple[str, int]:
        address = container["NetworkSettings"]["Networks"][self.name]["IPAddress"]
        if not address:
            raise ValueError
        return str(address), int(PORT.partition("/")[0])

    def _published(self, container: Mapping[str, Any]) -> tuple[str, int]:
        binding = container["NetworkSettings"]["Ports"][PORT][0]
        if self._settings.connect_address:
            host = self._settings.connect_address
        elif self._settings.publish_address not in _ANY:
            host = self._settings.publish_address
        else:
            host = urlsplit(self._settings.url).hostname or "127.0.0.1"
        return host, int(binding["HostPort"])


async def _try_out(host: str, port: int) -> None:
    """Connect. While somebody looks in vain for who had the address before, the kernel answers for all."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
        else:
            writer.close()
            return


def _ipam(network: Mapping[str, Any]) -> dict[str, str]:
    """The IPv4 part of a network's addresses."""
    for part in (network.get("IPAM") or {}).get("Config") or ():
        if "." in str(part.get("Subnet")):
            # Of a subnet that was asked for, an engine does not say the gateway, and takes the first address.
            gateway = part.get("Gateway") or str(IPv4Network(part["Subnet"])[1])
            return {"Subnet": part["Subnet"], "Gateway": str(gateway).partition("/")[0]}
    return {}


def _is_own_address(address: str) -> bool:
    if not address:
        return False
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
