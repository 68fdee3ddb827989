# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandbox states and the one table of legal transitions. Nothing else decides what is legal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from casulo.model.errors import Code, Conflict


class State(StrEnum):
    """Life-cycle state of a sandbox, spelled as on the wire."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSING = "Pausing"
    PAUSED = "Paused"
    RESUMING = "Resuming"
    STOPPING = "Stopping"
    TERMINATED = "Terminated"
    FAILED = "Failed"


_S = State
TRANSITIONS: dict[State, frozenset[State]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.FAILED, _S.STOPPING, _S.TERMINATED}),
    _S.RUNNING: frozenset({_S.PAUSING, _S.STOPPING, _S.TERMINATED, _S.FAILED}),
    _S.PAUSING: frozenset({_S.PAUSED, _S.RUNNING, _S.STOPPING, _S.TERMINATED, _S.FAILED}),
    _S.PAUSED: frozenset({_S.RESUMING, _S.STOPPING, _S.TERMINATED, _S.FAILED}),
    _S.RESUMING: frozenset({_S.RUNNING, _S.PAUSED, _S.STOPPING, _S.TERMINATED, _S.FAILED}),
    _S.STOPPING: frozenset(),
    _S.TERMINATED: frozenset({_S.STOPPING}),
    _S.FAILED: frozenset({_S.STOPPING}),
}
"""From a state to the states that may follow it. A sandbox that left STOPPING no longer exists."""

ENDED = frozenset({State.TERMINATED, State.FAILED})
"""States in which no process of the sandbox is left."""


@dataclass(frozen=True)
class Status:
    """State plus why: `reason` is a stable upper-case word, `message` a sentence for people."""

    state: State
    reason: str
    message: str
    since: datetime


def allowed(current: State, wanted: State) -> bool:
    """Whether the table has an edge from `current` to `wanted`."""
    return wanted in TRANSITIONS[current]


def require(sandbox_id: str, current: State, wanted: State) -> None:
    """Raise Conflict, with the code that clients know, unless the transition is legal."""
    if allowed(current, wanted):
        return
    code = {
        State.PAUSING: Code.SANDBOX_NOT_RUNNING,
        State.RESUMING: Code.SANDBOX_NOT_PAUSED,
    }.get(wanted, Code.SANDBOX_STATE_CONFLICT)
    needed = " or ".join(s.value for s, after in TRANSITIONS.items() if wanted in after)
    raise Conflict(
        f"sandbox {sandbox_id} is {current.value}; this needs it to be {needed}",
        code=code,
        hint="read its state with `osb sandbox get` and try again when it fits",
    )
