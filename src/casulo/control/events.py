# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What happens to sandboxes, told to whoever counts, traces or passes it on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import structlog

from casulo.model.sandbox import Sandbox

_log = structlog.get_logger(__name__)


class Kind(StrEnum):
    """Turns in a sandbox's life."""

    RUNNING = "sandbox.running"
    START_FAILED = "sandbox.start_failed"
    PAUSED = "sandbox.paused"
    RESUMED = "sandbox.resumed"
    ENDED = "sandbox.ended"
    REMOVED = "sandbox.removed"


@dataclass(frozen=True)
class Event:
    """One turn. `sandbox` is its record after it, `reason` a stable word.

    `stages` are the milestones of a start in their order, with the seconds that each took.
    """

    kind: Kind
    sandbox: Sandbox
    at: datetime
    reason: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


Listener = Callable[[Event], None]
"""Called on the event loop; must return at once."""


class Events:
    """Tells every listener; one that fails harms neither the others nor the sandbox."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Tell `listener` everything from now on."""
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        """Something happened."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # the edge between what happens and those who watch
                _log.exception("event.listener_failed", sandbox=event.sandbox.id, kind=event.kind)


class Milestones:
    """A stop watch with named splits."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.stages: dict[str, float] = {}

    def reached(self, name: str) -> None:
        """The stage `name` ends now."""
        now = time.perf_counter()
        self.stages[name] = now - self._last
        self._last = now
