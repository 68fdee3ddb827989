# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pure functions from a stored sandbox to the next one. Whether a step is legal, the table says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from casulo.model.sandbox import Exit, Sandbox
from casulo.model.states import ENDED, State, Status, allowed, require
from casulo.runtimes.base import Reality


class Reason:
    """The reasons that a status may carry."""

    STARTING = "CONTAINER_STARTING"
    QUEUED = "QUEUED"
    HOST_FULL = "HOST_FULL"
    RUNNING = "CONTAINER_RUNNING"
    PAUSING = "PAUSING"
    PAUSED = "CONTAINER_PAUSED"
    RESUMING = "RESUMING"
    EXITED = "CONTAINER_EXITED"
    EXITED_ERROR = "CONTAINER_EXITED_ERROR"
    UNKNOWN = "CONTAINER_STATE_UNKNOWN"
    DELETED = "DELETING"
    EXPIRED = "EXPIRED"
    START_FAILED = "START_FAILED"
    CREATE_CANCELLED = "CREATE_CANCELLED"
    SERVER_STOPPED = "SERVER_STOPPED"


_VIA = {State.PAUSED: State.PAUSING, State.RUNNING: State.RESUMING}
"""The state that the table puts before a settled one."""

_SETTLED_REASON = {State.PAUSED: Reason.PAUSED, State.RUNNING: Reason.RUNNING}


def moved(
    sandbox: Sandbox, wanted: State, reason: str, now: datetime, *, message: str = "", **changes: Any
) -> Sandbox:
    """`sandbox` in the state `wanted`, with other members changed along; Conflict when illegal."""
    require(sandbox.id, sandbox.status.state, wanted)
    return replace(sandbox, status=Status(wanted, reason, message, now), **changes)


def noted(sandbox: Sandbox, reason: str, message: str) -> Sandbox:
    """The same state with another explanation."""
    status = sandbox.status
    return replace(sandbox, status=Status(status.state, reason, message, status.since))


def ended(sandbox: Sandbox, exit_: Exit | None, now: datetime) -> Sandbox:
    """After the entrypoint's end. One that ended before, or is being deleted, stays as it is."""
    wanted = State.TERMINATED if exit_ and exit_.code == 0 else State.FAILED
    if sandbox.status.state in ENDED or not allowed(sandbox.status.state, wanted):
        return sandbox
    reason = Reason.EXITED if wanted is State.TERMINATED else Reason.EXITED_ERROR
    return moved(sandbox, wanted, reason, now, message=_told(exit_), exit=exit_)


def settled(sandbox: Sandbox, reality: Reality, now: datetime) -> Sandbox:
    """The row made to agree with what the runtime sees."""
    if not reality.alive:
        return ended(sandbox, reality.exit, now)
    if sandbox.status.state is State.STOPPING or sandbox.status.state in ENDED:
        return sandbox
    wanted = State.PAUSED if reality.frozen else State.RUNNING
    if sandbox.status.state is wanted:
        return sandbox if sandbox.status.reason != Reason.UNKNOWN else noted(sandbox, _reason(wanted), "")
    if not allowed(sandbox.status.state, wanted):
        sandbox = moved(sandbox, _VIA[wanted], _reason(wanted), now)
    return moved(sandbox, wanted, _reason(wanted), now)


def _reason(state: State) -> str:
    return _SETTLED_REASON[state]


def _told(exit_: Exit | None) -> str:
    if exit_ is None:
        return "its processes ended without leaving an exit status"
    if exit_.oom:
        return "the entrypoint was ended for passing the memory limit"
    if exit_.code is None:
        return f"the entrypoint was ended by {exit_.signal or 'a signal'}"
    return f"the entrypoint ended with code {exit_.code}"
