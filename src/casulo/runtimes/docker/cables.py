# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cables: containers without a network of the engine, connected by this server to the packet filter.

The engine gives such a container an empty network namespace. While its daemon still waits for its boot
document, the server puts one end of a slot's pair there. Everything that the engine might do later, be it
a restart, makes a new empty namespace, so that the container is then connected to nothing.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from casulo import linux
from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.model.policy import NetworkPolicy
from casulo.network import slots
from casulo.network.egress.egress import Egress
from casulo.network.egress.ground import Ground
from casulo.network.filter import ANY_SANDBOX, Filter, allow_forwarding, host_resolvers
from casulo.network.instance import instance_of, table_of
from casulo.network.slots import Maker, Plan, Slot, Slots
from casulo.runtimes.docker.settings import DockerSettings

_RUN = Path("/run/casulo")
_IFF_UP = 1


class Cables:
    """All of one server, open between `open` and `close`. Methods block; call them from worker threads.

    `data` has for each sandbox the number of its slot and, if there is one, its policy.
    """

    def __init__(self, data: Path, settings: DockerSettings, egress: Egress) -> None:
        instance = instance_of(data)
        prefix = f"{ANY_SANDBOX}{instance}d"
        self._records = data / "docker" / "cables"
        self._ground = Ground(egress, f"{table_of(instance)}_docker")
        run = _RUN / instance / "docker"
        plan = Plan(settings.cable_network, prefix, run, _RUN / "slots.lock")
        self._slots = Slots(plan, Maker(slots.build, slots.destroy_pair))
        self._outbound = settings.outbound
        self._filter = Filter(
            table=self._ground.baseline,
            prefix=prefix,
            network=settings.cable_network,
            resolvers=host_resolvers(),
            outbound=settings.outbound,
        )

    def open(self) -> None:
        """Load the filter, and go on with the cables of an earlier server."""
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {sandbox_id: self.slot(sandbox_id) for sandbox_id in self.sandboxes()}
        held = {sandbox_id: slot for sandbox_id, slot in known.items() if slot is not None}
        found = [
            each for name, slot in held.items() if (each := self._ground.found(name, slot, self._of(name)))
        ]
        replace(self._filter, policed=tuple(each.interface for each in found)).apply()
        if self._outbound:
            allow_forwarding()
        self._slots.restore({slot.index for slot in held.values()})
        self._ground.restore(found)

    def make(self, sandbox_id: str, policy: NetworkPolicy | None) -> Slot:
        """A cable whose guest's end waits, under `policy` from its first packet."""
        slot = self._slots.take()
        self._number(sandbox_id).write_text(str(slot.index))
        if policy is not None:
            self.police(sandbox_id, policy)
        return slot

    def plug(self, sandbox_id: str, pid: int, container_id: str) -> None:
        """Connect a container whose first process is `pid`, and in which nothing of the user runs yet."""
        slot = self.slot(sandbox_id)
        assert slot is not None
        try:
            with ExitStack() as stack:
                process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, process)
                target = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
                stack.callback(os.close, target)
                _check_is(process, container_id)
                linux.in_own_thread(lambda: _check_is_empty(target))
                slots.hand_over(slot, target)
        except (OSError, NetlinkError) as error:
            raise RuntimeFailure(
                f"the container cannot be connected to the packet filter: {error}",
                code=Code.SANDBOX_START_FAILED,
                hint='[docker] reach = "published" leaves the network to the engine, without policies',
            ) from error

    def police(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a connected sandbox under another policy; on an error the one before stays."""
        slot = self.slot(sandbox_id)
        if slot is None:
            raise Unsupported(
                "this sandbox is on a network of the engine, where no policy can be enforced",
                code=Code.NETWORK_POLICY_NOT_SUPPORTED,
                hint="make it anew with an OCI runtime that shares the host's kernel, such as runc",
            )
        self._ground.police(sandbox_id, slot, self._of(sandbox_id), policy)

    def slot(self, sandbox_id: str) -> Slot | None:
        """The cable of a sandbox; None when it has none."""
        try:
            return self._slots.at(int(self._number(sandbox_id).read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def release(self, sandbox_id: str) -> None:
        """Take the cable of a container that is gone away. Idempotent."""
        slot = self.slot(sandbox_id)
        self._ground.drop(sandbox_id)
        if slot is not None:
            self._slots.release(slot.index)
        for path in (self._of(sandbox_id), self._number(sandbox_id)):
            path.unlink(missing_ok=True)

    def sandboxes(self) -> set[str]:
        """Ids of all sandboxes that left a record."""
        return {path.stem for path in self._records.glob("*.slot")}

    def close(self, last: bool) -> None:
        """Remove spare cables and, with the last sandbox gone, the filter."""
        self._slots.close()
        self._ground.close()
        if last:
            self._filter.remove()

    def _number(self, sandbox_id: str) -> Path:
        return self._records / f"{sandbox_id}.slot"

    def _of(self, sandbox_id: str) -> Path:
        return self._records / f"{sandbox_id}.policy"


def _check_is(process: int, container_id: str) -> None:
    """The engine's numbers of processes need not be ours; the group's name tells whose process it is."""
    with open(os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as groups:
        if container_id not in groups.read():
            raise OSError("the process that the engine names is not the container's")


def _check_is_empty(target: int) -> None:
    linux.enter_network(target)
    with IPRoute() as netlink:
        for link in netlink.get_links():
            name = link.get_attr("IFLA_IFNAME")
            if name != "lo" and (link["flags"] & _IFF_UP or name == slots.GUEST_INTERFACE):
                raise OSError(f"the container has a network already: {name}")
