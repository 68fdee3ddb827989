# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How a sandbox is connected, and how its daemon is reached: two ways with one shape.

`RoutedNetwork` (as root) gives each sandbox a prepared slot behind the packet filter.
`SocketNetwork` (without root) gives it an empty network and a unix socket; the server listens on
a loopback port for it and passes the bytes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure
from casulo.model.policy import NetworkPolicy
from casulo.model.sandbox import EXECD_PORT
from casulo.network import connections, slots
from casulo.network import filter as packet_filter
from casulo.network.egress.egress import Attached, Egress
from casulo.network.egress.ground import Ground, read_policy
from casulo.network.forward import Forward
from casulo.network.instance import table_of
from casulo.network.slots import Plan, Slots
from casulo.runtimes.local.bundle import Bind
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.host import Host
from casulo.runtimes.local.settings import LocalSettings

SOCKET_FOLDER = "/opt/opensandbox/socket"


@dataclass(frozen=True)
class Attachment:
    """One sandbox's connection: what the container and the daemon are told about it."""

    namespace: Path | None
    listen: str
    address: str
    binds: tuple[Bind, ...] = ()
    resolver: str | None = None
    """The name server to use; None leaves the host's."""


class Network(Protocol):
    """Blocking methods run in worker threads; async ones on the event loop."""

    spare_wanted: int

    @property
    def spare(self) -> int:
        """Connections that are ready for the next creates."""

    def open(self, folders: list[Folder]) -> None:
        """Set up, keeping what the sandboxes of `folders` use and removing every other trace."""

    def prepare(self) -> None:
        """Make one more connection ready."""

    def attach(self, folder: Folder, policy: NetworkPolicy | None) -> Attachment:
        """Connect the sandbox of `folder`, under `policy` from its first packet."""

    def police(self, folder: Folder, policy: NetworkPolicy) -> None:
        """Put a connected sandbox under another policy; on an error the one before stays."""

    async def publish(self, folder: Folder, port: int | None) -> tuple[str, int]:
        """Host and port at which the server and its local clients reach the daemon.

        `port` is the one of an earlier server that clients may still know. Idempotent.
        """

    def again(self, folder: Folder) -> Attachment:
        """What `attach` gave, for a second start of the same sandbox, under the policy that it was under."""

    def sever(self, folder: Folder) -> None:
        """Tell its peers that a sandbox with a network stack of its own is gone. Idempotent."""

    def refuse(self, folder: Folder) -> None:
        """`sever`, and let the kernel refuse whoever asks again, as with a container that has ended."""

    def detach(self, folder: Folder) -> None:
        """Take the connection down. Idempotent."""

    async def unpublish(self, folder: Folder) -> None:
        """Stop listening for it. Idempotent."""

    def close(self, last: bool) -> None:
        """Give back what no sandbox uses; with `last`, the packet filter too."""


class RoutedNetwork:
    """Slots behind the packet filter."""

    def __init__(self, settings: LocalSettings, host: Host, egress: Egress) -> None:
        self._ground = Ground(egress, table_of(host.instance))
        self.spare_wanted = settings.slots
        self._settings = settings
        lock = host.run.parent / "slots.lock"
        self._slots = Slots(Plan(settings.network, host.interface_prefix, host.run / "netns", lock))
        self._filter = packet_filter.Filter(
            table=self._ground.baseline,
            prefix=host.interface_prefix,
            network=settings.network,
            resolvers=packet_filter.host_resolvers(),
            outbound=settings.outbound,
        )

    @property
    def spare(self) -> int:
        """Slots that are ready."""
        return self._slots.ready

    def open(self, folders: list[Folder]) -> None:
        """Load the filter before anything that it guards exists."""
        policed = [found for folder in folders if (found := self._policed(folder))]
        dataclasses.replace(self._filter, policed=tuple(each.interface for each in policed)).apply()
        if self._settings.outbound:
            packet_filter.allow_forwarding()
        self._slots.restore({i for f in folders if (i := slot_of(f)) is not None})
        self._ground.restore(policed)

    def _policed(self, folder: Folder) -> Attached | None:
        index = slot_of(folder)
        if index is None:
            return None
        return self._ground.found(folder.path.name, self._slots.at(index), folder.policy)

    def prepare(self) -> None:
        """Make one more slot."""
        self._slots.prepare()

    def attach(self, folder: Folder, policy: NetworkPolicy | None) -> Attachment:
        """Take a slot; its number is written down before it is used."""
        slot = self._slots.take()
        linux.write_file(folder.slot, str(slot.index), linux.NEW_FILE)
        resolver = None
        if policy is not None:
            self.police(folder, policy)
            resolver = str(slot.gateway)
        listen = f"tcp://0.0.0.0:{EXECD_PORT}"
        return Attachment(slot.namespace, listen, str(slot.address), resolver=resolver)

    def police(self, folder: Folder, policy: NetworkPolicy) -> None:
        """Written down first, so that a server that starts after a crash closes the same sandboxes."""
        index = slot_of(folder)
        if index is None:
            raise RuntimeFailure(f"{folder.path} has no network slot", code=Code.NETWORK_POLICY_FAILED)
        self._ground.police(folder.path.name, self._slots.at(index), folder.policy, policy)

    async def publish(self, folder: Folder, port: int | None) -> tuple[str, int]:
        """The slot's own address: the host routes to it."""
        index = slot_of(folder)
        if index is None:
            raise RuntimeFailure(f"{folder.path} has no network slot", code=Code.SANDBOX_START_FAILED)
        return str(self._slots.at(index).address), EXECD_PORT

    def again(self, folder: Folder) -> Attachment:
        """The same slot, made once more under its policy where the machine has lost it."""
        index = slot_of(folder)
        if index is None:
            raise RuntimeFailure(f"{folder.path} has no network slot", code=Code.SANDBOX_START_FAILED)
        slot = self._slots.at(index)
        if self._slots.renew(index) and folder.policy.exists():
            self.police(folder, read_policy(folder.policy))
        slots.address_again(slot)
        return Attachment(slot.namespace, f"tcp://0.0.0.0:{EXECD_PORT}", str(slot.address))

    def sever(self, folder: Folder) -> None:
        """End this host's connections to the slot's address."""
        index = slot_of(folder)
        if index is not None:
            connections.sever(self._slots.at(index).address)

    def refuse(self, folder: Folder) -> None:
        """Give the address back to the slot's namespace, where nobody listens, and end the connections."""
        index = slot_of(folder)
        if index is not None:
            with contextlib.suppress(FileNotFoundError):  # a reboot took the namespace along
                slots.address_again(self._slots.at(index))
        self.sever(folder)

    def detach(self, folder: Folder) -> None:
        """Release the slot."""
        self._ground.drop(folder.path.name)
        index = slot_of(folder)
        if index is not None:
            self._slots.release(index)

    async def unpublish(self, folder: Folder) -> None:
        """Nothing listens on the server's side."""

    def close(self, last: bool) -> None:
        """Remove spare slots and, with the last sandbox gone, the filter."""
        self._slots.close()
        self._ground.close()
        if last:
            self._filter.remove()


class SocketNetwork:
    """No network but loopback inside; the daemon listens on a unix socket in a shared folder."""

    spare_wanted = 0
    spare = 0

    def __init__(self) -> None:
        self._forwards: dict[Path, Forward] = {}

    def open(self, folders: list[Folder]) -> None:
        """Nothing is shared between sandboxes."""

    def prepare(self) -> None:
        """Nothing can be made ahead."""

    def attach(self, folder: Folder, policy: NetworkPolicy | None) -> Attachment:
        """Make the folder in which the daemon will listen."""
        folder.socket.parent.mkdir(mode=0o700)
        bind = Bind(folder.socket.parent, SOCKET_FOLDER, writable=True)
        return Attachment(None, f"unix://{SOCKET_FOLDER}/{folder.socket.name}", "127.0.0.1", (bind,))

    def police(self, folder: Folder, policy: NetworkPolicy) -> None:
        """There is no network that a policy could be about."""
        raise RuntimeFailure("this sandbox has no network", code=Code.NETWORK_POLICY_NOT_SUPPORTED)

    async def publish(self, folder: Folder, port: int | None) -> tuple[str, int]:
        """Listen on loopback for this sandbox."""
        if folder.path not in self._forwards:
            self._forwards[folder.path] = await Forward.open(folder.socket, port)
        return "127.0.0.1", self._forwards[folder.path].port

    def again(self, folder: Folder) -> Attachment:
        """The same folder."""
        bind = Bind(folder.socket.parent, SOCKET_FOLDER, writable=True)
        return Attachment(None, f"unix://{SOCKET_FOLDER}/{folder.socket.name}", "127.0.0.1", (bind,))

    def sever(self, folder: Folder) -> None:
        """The kernel does it."""

    def refuse(self, folder: Folder) -> None:
        """The kernel does that, too."""

    def detach(self, folder: Folder) -> None:
        """The socket goes with the sandbox's directory."""

    async def unpublish(self, folder: Folder) -> None:
        """Stop listening."""
        forward = self._forwards.pop(folder.path, None)
        if forward:
            with contextlib.suppress(asyncio.CancelledError):
                await forward.close()

    def close(self, last: bool) -> None:
        """Listeners end with the event loop's process."""


def slot_of(folder: Folder) -> int | None:
    """The slot that a sandbox holds; None when it took none yet, or wrote it half."""
    try:
        return int(linux.read_file(folder.slot))
    except (FileNotFoundError, ValueError, NotADirectoryError):
        return None
