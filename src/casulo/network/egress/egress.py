# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the rest of the server sees of egress: sandboxes are put under policies, and asked about.

The process is started when the first policy needs it. Everything here blocks; call it from threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from casulo.model.errors import Unavailable
from casulo.model.policy import NetworkPolicy
from casulo.model.policywire import expanded, wire
from casulo.network.egress.calls import Line, call
from casulo.network.egress.place import Place
from casulo.network.egress.process import Process
from casulo.network.egress.settings import EgressSettings

_PATIENCE_SECONDS = 5.0
_RETRY_SECONDS = 0.02


@dataclass(frozen=True)
class Attached:
    """A sandbox as the packet filter knows it, and what holds for it."""

    sandbox_id: str
    interface: str
    address: str
    policy: NetworkPolicy
    baseline: str
    """The table of the packet filter that closes its direct way."""

    def definition(self) -> dict[str, Any]:
        """For the process."""
        return {
            "id": self.sandbox_id,
            "interface": self.interface,
            "address": self.address,
            "baseline": self.baseline,
            "policy": wire(expanded(self.policy)),
        }


class Egress:
    """One per server, for all runtimes of it. Keeps what holds, to say it again to a new process.

    Each runtime has a baseline of its own, and speaks for the sandboxes at it only.
    """

    def __init__(self, settings: EgressSettings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._held: dict[str, Attached] = {}
        self._baselines: set[str] = set()
        self._vaults: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.RLock()
        self._process: Process | None = None
        self._line = Line(place.socket)

    @property
    def place(self) -> Place:
        """Where its things are."""
        return self._place

    def restore(self, baseline: str, found: Iterable[Attached]) -> None:
        """Take over the sandboxes of an earlier server; starts nothing when there are none."""
        with self._lock:
            self._baselines.add(baseline)
            self._held.update({each.sandbox_id: each for each in found})
            if self._process is not None:
                self._say_again(baseline)
            elif self._held or self._place.socket.exists():
                self._running()

    def put(self, attached: Attached) -> None:
        """Put a sandbox under a policy; on an error the one before stays."""
        with self._lock:
            held = self._held.get(attached.sandbox_id)
            if held == attached:
                return
            self._running()
        told = self._whole(attached) if held is None else attached.definition()  # the vault stays as it is
        target = f"/sandboxes/{quote(attached.sandbox_id, safe='')}"
        self._tell("PUT", target, told, lambda: self._keep(attached))

    def foretell(self, vaults: Mapping[str, Mapping[str, Any]]) -> None:
        """What the requests of an earlier server's sandboxes are given, for `restore` to tell."""
        with self._lock:
            self._vaults.update(vaults)

    def arm(self, sandbox_id: str, vault: Mapping[str, Any] | None) -> None:
        """Give a sandbox's requests other credentials; on an error those before stay."""
        with self._lock:
            if sandbox_id not in self._held:  # `put` will tell
                self._keep_vault(sandbox_id, vault)
                return
            self._running()
        target = f"/sandboxes/{quote(sandbox_id, safe='')}/vault"
        method = "DELETE" if vault is None else "PUT"
        self._tell(method, target, vault, lambda: self._keep_vault(sandbox_id, vault))

    def drop(self, sandbox_id: str) -> None:
        """Forget a sandbox whose interface is silent; its vault stays until `arm` says that it is none."""
        with self._lock:
            if sandbox_id not in self._held:
                return
            self._running()
        target = f"/sandboxes/{quote(sandbox_id, safe='')}"
        self._tell("DELETE", target, None, lambda: self._held.pop(sandbox_id, None))

    def held(self, sandbox_id: str) -> Attached | None:
        """What holds for a sandbox."""
        return self._held.get(sandbox_id)

    def state(self, sandbox_id: str) -> dict[str, Any]:
        """Counts and the last failure of one sandbox."""
        told: dict[str, Any] = self._ask("GET", sandbox_id, "")
        return told

    def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The destinations that a sandbox was allowed to reach, with counts."""
        told: list[dict[str, Any]] = self._ask("GET", sandbox_id, "/seen")
        return told

    def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        """What would become of a request, and which rule decides."""
        told: dict[str, Any] = self._ask("POST", sandbox_id, "/test", {"url": url, "method": method})
        return told

    def close(self, baseline: str) -> None:
        """Leave the process to its sandboxes, when the last runtime closes; without any it goes."""
        with self._lock:
            self._baselines.discard(baseline)
            if self._baselines:
                return
            process, self._process = self._process, None
        if process is not None:
            process.close(not self._held)

    def _ask(self, method: str, sandbox_id: str, what: str, body: Any = None) -> Any:
        return call(self._place.socket, method, f"/sandboxes/{quote(sandbox_id, safe='')}{what}", body)

    def _whole(self, attached: Attached) -> dict[str, Any]:
        return {**attached.definition(), "vault": self._vaults.get(attached.sandbox_id)}

    def _keep_vault(self, sandbox_id: str, vault: Mapping[str, Any] | None) -> None:
        if vault is None:
            self._vaults.pop(sandbox_id, None)
        else:
            self._vaults[sandbox_id] = vault

    def _keep(self, attached: Attached) -> None:
        self._held[attached.sandbox_id] = attached

    def _tell(self, method: str, target: str, body: Any, noted: Callable[[], object]) -> None:
        """Change what holds; waits a while for a process that is just being started again."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with self._lock:
                    self._line.call(method, target, body)
                    noted()
                    return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _running(self) -> None:
        if self._process is None:
            process = Process(self._place, self._settings, self._say_all_again)
            process.open()
            self._process = process

    def _say_all_again(self) -> None:
        """All that holds, and nothing else. Waits while a change is being made."""
        with self._lock:
            for baseline in sorted(self._baselines):
                self._say_again(baseline)

    def _say_again(self, baseline: str) -> None:
        held = [self._whole(each) for each in self._held.values() if each.baseline == baseline]
        call(self._place.socket, "PUT", f"/sandboxes?baseline={quote(baseline, safe='')}", held, seconds=60)
