# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The one way in which a sandbox leaves: delete, expiry, failed and abandoned creates all come here.

The order makes it safe to be killed at any point: first the intent is stored, then whatever is
starting is interrupted, then the runtime removes every trace, and only then the row goes.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import structlog

from casulo.control.context import Context
from casulo.control.events import Kind
from casulo.control.transitions import Reason, moved, noted
from casulo.control.vaults import Vaults
from casulo.model.errors import CasuloError, Code, RuntimeFailure
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.store.query import Tombstone

_FIRST_RETRY_SECONDS = 5.0
_LAST_RETRY_SECONDS = 300.0
_log = structlog.get_logger(__name__)


class Stops:
    """Stops in progress, and those that failed and are owed another try."""

    def __init__(self, context: Context, vaults: Vaults) -> None:
        self._context = context
        self._vaults = vaults
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owed: dict[str, tuple[float, float]] = {}  # id -> (when, delay), in loop time

    def running(self, sandbox_id: str) -> asyncio.Task[None] | None:
        """The stop of this sandbox that is in progress."""
        return self._running.get(sandbox_id)

    async def stop(self, sandbox_id: str, reason: str, message: str = "") -> None:
        """Remove the sandbox, or wait for the removal in progress. NotFound when there is none."""
        await asyncio.shield(self.begin(sandbox_id, reason, message))

    def begin(self, sandbox_id: str, reason: str, message: str = "") -> asyncio.Task[None]:
        """As `stop`, without waiting."""
        if sandbox_id not in self._running:
            task = self._context.tasks.spawn(self._stop(sandbox_id, reason, message), f"stop {sandbox_id}")
            self._running[sandbox_id] = task
            task.add_done_callback(lambda _: self._running.pop(sandbox_id))
        return self._running[sandbox_id]

    async def expire(self, sandbox_id: str) -> None:
        """Begin to remove the sandbox if its time has really come; a renewal in between wins."""
        now = self._context.now()
        found = await self._context.store.update(sandbox_id, lambda s: _expired(s, now))
        if found and found.status.state is State.STOPPING:
            self.begin(sandbox_id, Reason.EXPIRED)

    def retry(self) -> None:
        """Begin again the stops that failed, each when its delay is over."""
        now = asyncio.get_running_loop().time()
        for sandbox_id, (when, _) in list(self._owed.items()):
            if when <= now:
                self.begin(sandbox_id, Reason.DELETED)

    async def _stop(self, sandbox_id: str, reason: str, message: str) -> None:
        now = self._context.now()
        try:
            await self._context.update(sandbox_id, lambda s: _stopping(s, reason, now, message))
            await self._interrupt_start(sandbox_id)
            async with self._context.locks.hold(sandbox_id):
                await self._remove(await self._context.get(sandbox_id))
        except Exception as error:  # whatever it was, the sandbox must not be forgotten
            await self._failed(sandbox_id, error)
            raise
        self._owed.pop(sandbox_id, None)

    async def _interrupt_start(self, sandbox_id: str) -> None:
        launch = self._context.starting.get(sandbox_id)
        if launch and launch.interruptible:
            launch.task.cancel()
            await asyncio.wait([launch.task])

    async def _remove(self, sandbox: Sandbox) -> None:
        runtime = self._context.runtimes.named(sandbox.runtime)
        grace = self._context.settings.sandbox.stop_grace_seconds
        try:
            exit_ = await runtime.destroy(sandbox.id, sandbox.handle, grace)
        except RuntimeFailure as error:
            raise RuntimeFailure(
                f"sandbox {sandbox.id} could not be removed: {error.message}",
                code=Code.SANDBOX_DELETE_FAILED,
                hint=error.hint or "the server tries again by itself; its log says more",
            ) from error
        await self._vaults.forget(sandbox, runtime)
        stone = Tombstone(sandbox.id, self._context.now(), sandbox.status.reason, exit_ or sandbox.exit)
        # A sandbox that never ran gives its idempotency key back, so that a retry may create it.
        await self._context.store.remove(stone, release_claim=sandbox.handle is None)
        _log.info("sandbox.removed", sandbox=sandbox.id, reason=stone.reason)
        self._context.tell(Kind.REMOVED, sandbox, stone.reason)

    async def _failed(self, sandbox_id: str, error: Exception) -> None:
        if isinstance(error, CasuloError) and error.code == Code.SANDBOX_NOT_FOUND:
            self._owed.pop(sandbox_id, None)
            return
        _, delay = self._owed.get(sandbox_id, (0.0, _FIRST_RETRY_SECONDS / 2))
        delay = min(delay * 2, _LAST_RETRY_SECONDS)
        self._owed[sandbox_id] = (asyncio.get_running_loop().time() + delay, delay)
        _log.warning("sandbox.stop_failed", sandbox=sandbox_id, error=str(error), retry_seconds=delay)
        try:
            message = f"removal failed and is tried again: {error}"
            await self._context.store.update(sandbox_id, lambda s: _unremoved(s, message))
        except CasuloError as second:
            _log.warning("sandbox.note_failed", sandbox=sandbox_id, error=str(second))


def _stopping(sandbox: Sandbox, reason: str, now: datetime, message: str = "") -> Sandbox:
    if sandbox.status.state is State.STOPPING:
        return sandbox
    return moved(sandbox, State.STOPPING, reason, now, message=message)


def _expired(sandbox: Sandbox, now: datetime) -> Sandbox:
    due = sandbox.expires_at is not None and sandbox.expires_at <= now
    return _stopping(sandbox, Reason.EXPIRED, now) if due else sandbox


def _unremoved(sandbox: Sandbox, message: str) -> Sandbox:
    if sandbox.status.state is not State.STOPPING or sandbox.status.message == message:
        return sandbox
    return noted(sandbox, sandbox.status.reason, message)  # why it ends is told when it has
