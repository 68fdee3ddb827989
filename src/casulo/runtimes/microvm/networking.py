# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The network of all machines of one server: their tap devices, the filter before them, and policies.

A machine that stands still on disk has no device. Its policy is in its folder, and holds again before
it goes on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from casulo.model.policy import NetworkPolicy
from casulo.network import filter as packet_filter
from casulo.network.egress.egress import Egress
from casulo.network.egress.ground import Ground, read_policy, write_policy
from casulo.network.slots import Plan, Slot
from casulo.network.taps import Taps
from casulo.runtimes.microvm import host
from casulo.runtimes.microvm.folder import Folder, Folders
from casulo.runtimes.microvm.settings import MicrovmSettings


class Networking:
    """Methods block; call them from worker threads."""

    def __init__(self, instance: str, settings: MicrovmSettings, run: Path, egress: Egress) -> None:
        prefix = host.interface_prefix(instance)
        self._outbound = settings.outbound
        self._ground = Ground(egress, f"casulo_{instance}m")
        self._filter = packet_filter.Filter(
            table=self._ground.baseline,
            prefix=prefix,
            network=settings.network,
            resolvers=packet_filter.host_resolvers(),
            outbound=settings.outbound,
        )
        self.taps = Taps(Plan(settings.network, prefix, run / "taps", run.parent / "slots.lock"))

    def open(self, folders: Folders) -> None:
        """Load the filter, and go on with the machines of an earlier server."""
        self._folders = folders
        slots = {name: slot for name in folders.names() if (slot := self._slot(folders.of(name)))}
        looked = [self._ground.found(name, slot, folders.of(name).policy) for name, slot in slots.items()]
        found = [each for each in looked if each is not None]
        replace(self._filter, policed=tuple(each.interface for each in found)).apply()
        if self._outbound:
            packet_filter.allow_forwarding()
        self.taps.restore({slot.index for slot in slots.values()})
        self._ground.restore(found)

    def police(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a machine under a policy; one that stands still is when it goes on."""
        folder = self._folders.of(sandbox_id)
        slot = self._slot(folder)
        if slot is None or folder.frozen.exists():
            write_policy(folder.policy, policy)
        else:
            self._ground.police(sandbox_id, slot, folder.policy, policy)

    def again(self, folder: Folder) -> None:
        """A machine that stood still has its device again, and is about to go on."""
        slot = self._slot(folder)
        if slot is not None and folder.policy.exists():
            self._ground.police(folder.name, slot, folder.policy, read_policy(folder.policy))

    def silent(self, sandbox_id: str) -> None:
        """A machine has no device any more. Idempotent."""
        self._ground.drop(sandbox_id)

    def resolvers(self, folder: Folder) -> list[str]:
        """The name servers that the guest shall use."""
        slot = self._slot(folder)
        if slot is not None and folder.policy.exists():
            return [str(slot.gateway)]
        return [str(address) for address in packet_filter.host_resolvers()]

    def close(self, last: bool) -> None:
        """Give back what no machine uses; with the last of them gone, the filter too."""
        self.taps.close()
        self._ground.close()
        if last:
            self._filter.remove()

    def _slot(self, folder: Folder) -> Slot | None:
        index = folder.index()
        return None if index is None else self.taps.at(index)
