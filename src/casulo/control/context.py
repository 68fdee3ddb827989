# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the parts of the lifecycle service share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from casulo.control.events import Event, Events, Kind, turn
from casulo.control.settings import ControlSettings
from casulo.control.tasks import Locks, Tasks
from casulo.control.transitions import moved, settled
from casulo.model.errors import Code, Conflict, sandbox_not_found
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.runtimes.base import Reality
from casulo.runtimes.registry import Registry
from casulo.store.store import Change, Store

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The wall clock; expiry is a promise about the calendar, also across restarts."""
    return datetime.now(UTC)


@dataclass
class Launch:
    """A start in flight. It is not interruptible while it undoes itself."""

    task: asyncio.Task[Sandbox]
    interruptible: bool = True


@dataclass
class Context:
    """Collaborators, plus the starts in flight, which both starting and stopping must see."""

    store: Store
    runtimes: Registry
    settings: ControlSettings
    now: Clock = utc_now
    tasks: Tasks = field(default_factory=Tasks)
    locks: Locks = field(default_factory=Locks)
    starting: dict[str, Launch] = field(default_factory=dict)
    events: Events = field(default_factory=Events)
    acts: Callable[[], bool] = lambda: True
    """Whether this process may do something about sandboxes that nobody asked it for."""

    def tell(
        self, kind: Kind, sandbox: Sandbox, reason: str, stages: Mapping[str, float] | None = None
    ) -> None:
        """Let everybody who listens know what happened."""
        self.events.tell(Event(kind, sandbox, self.now(), reason, stages or {}))

    def require_here(self, server: str, what: str) -> None:
        """Conflict when it is on another server's machine, to which this one cannot reach."""
        if server != self.store.here:
            raise Conflict(
                f"{what} is on the machine of the server {server}",
                code=Code.SERVER_ELSEWHERE,
                hint="ask that server; `GET /v1/servers` says where it is",
            )

    async def get(self, sandbox_id: str) -> Sandbox:
        """The stored sandbox, or NotFound."""
        sandbox = await self.store.get(sandbox_id)
        if sandbox is None:
            raise sandbox_not_found(sandbox_id)
        return sandbox

    async def update(self, sandbox_id: str, change: Change) -> Sandbox:
        """The stored sandbox after an atomic change, or NotFound."""
        sandbox = await self.store.update(sandbox_id, change)
        if sandbox is None:
            raise sandbox_not_found(sandbox_id)
        return sandbox

    async def move(
        self, sandbox_id: str, wanted: State, reason: str, *, message: str = "", **changes: Any
    ) -> Sandbox:
        """Take the sandbox to another state, if the table has that step from where it is now."""
        now = self.now()
        return await self.update(
            sandbox_id, lambda found: moved(found, wanted, reason, now, message=message, **changes)
        )

    async def settle(self, sandbox_id: str, reality: Reality) -> Sandbox | None:
        """Make the row agree with what the runtime sees, and tell what that means; None without a row."""
        found: list[Sandbox] = []
        now = self.now()

        def agreed(sandbox: Sandbox) -> Sandbox:
            found[:] = [sandbox]
            return settled(sandbox, reality, now)

        after = await self.store.update(sandbox_id, agreed)
        if after and (event := turn(found[0], after)):
            self.events.tell(event)
        return after
