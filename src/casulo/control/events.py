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

from casulo.control.transitions import Reason
from casulo.model.sandbox import Sandbox
from casulo.model.states import ENDED, State
from casulo.store.query import Tombstone

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


_TURNS = {
    (State.PENDING, State.RUNNING): Kind.RUNNING,
    (State.RUNNING, State.PAUSED): Kind.PAUSED,
    (State.PAUSING, State.PAUSED): Kind.PAUSED,
    (State.PAUSED, State.RUNNING): Kind.RESUMED,
    (State.RESUMING, State.RUNNING): Kind.RESUMED,
}
"""A pause or resume that failed is none: nothing was told that it would take back."""


def turn(before: Sandbox, after: Sandbox | Tombstone) -> Event | None:
    """What a change of a sandbox's record, or its removal, means to others; None if nothing."""
    if isinstance(after, Tombstone):
        return Event(Kind.REMOVED, before, after.deleted_at, after.reason)
    kind = _kind(before.status.state, after)
    return None if kind is None else Event(kind, after, after.status.since, after.status.reason)


def _kind(was: State, after: Sandbox) -> Kind | None:
    if after.status.state is State.STOPPING:
        failed = was is State.PENDING and after.status.reason == Reason.START_FAILED
        return Kind.START_FAILED if failed else None
    if after.status.state in ENDED:
        return None if was is State.STOPPING or was in ENDED else Kind.ENDED
    return _TURNS.get((was, after.status.state))


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
