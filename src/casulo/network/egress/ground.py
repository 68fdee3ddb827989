# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The sandboxes of one runtime as egress sees them: all behind one baseline table of the packet filter.

Each policy is written to a file before it holds, so that a server that starts after a crash closes the
same sandboxes before it knows anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from casulo.model.errors import CasuloError
from casulo.model.policy import NetworkPolicy
from casulo.model.policywire import parse_policy, wire
from casulo.network.egress.egress import Attached, Egress
from casulo.network.slots import Slot, interfaces


class Ground:
    """`baseline` is the runtime's own table, which lets policed interfaces go only where it was judged."""

    def __init__(self, egress: Egress, baseline: str) -> None:
        self._egress = egress
        self.baseline = baseline

    def found(self, sandbox_id: str, slot: Slot, file: Path) -> Attached | None:
        """The policy of an earlier server's sandbox; everything is denied where it cannot be read."""
        if not file.exists() or slot.interface not in interfaces(slot.interface):
            return None  # without its interface its processes are gone, or it stands still on disk
        return self._attached(sandbox_id, slot, read_policy(file))

    def restore(self, found: Iterable[Attached]) -> None:
        """Take over what an earlier server left."""
        self._egress.restore(self.baseline, found)

    def police(self, sandbox_id: str, slot: Slot, file: Path, policy: NetworkPolicy) -> None:
        """Put a connected sandbox under another policy; on an error the one before stays."""
        held = self._egress.held(sandbox_id)
        write_policy(file, policy)
        try:
            self._egress.put(self._attached(sandbox_id, slot, policy))
        except BaseException:
            if held is not None:
                write_policy(file, held.policy)
            raise

    def drop(self, sandbox_id: str) -> None:
        """Forget a sandbox whose interface is silent. Idempotent."""
        self._egress.drop(sandbox_id)

    def close(self) -> None:
        """The runtime closes."""
        self._egress.close(self.baseline)

    def _attached(self, sandbox_id: str, slot: Slot, policy: NetworkPolicy) -> Attached:
        return Attached(sandbox_id, slot.interface, str(slot.address), policy, self.baseline)


def write_policy(path: Path, policy: NetworkPolicy) -> None:
    """Keep a policy in a file, whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(wire(policy)))
    draft.replace(path)


def read_policy(path: Path) -> NetworkPolicy:
    """A policy from its file; one that denies everything when it cannot be read."""
    try:
        return parse_policy(json.loads(path.read_text()))
    except (ValueError, CasuloError, OSError):
        return NetworkPolicy()
