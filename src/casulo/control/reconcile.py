# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""At start: make rows and reality agree after whatever happened while no server ran.

Reality wins over what the row says of a live sandbox; intent wins over what is half done. One
sandbox that cannot be judged is marked and logged, looked at again later, and never keeps the
server from starting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from casulo.control.context import Context
from casulo.control.starts import Starts
from casulo.control.stops import Stops
from casulo.control.transitions import Reason, noted
from casulo.model.errors import CasuloError
from casulo.model.sandbox import Sandbox
from casulo.model.states import ENDED, State
from casulo.runtimes.base import Runtime

_AT_ONCE = 16
_INSPECT_SECONDS = 10.0
_FIRST_LOOK_SECONDS = 2.0
_LAST_LOOK_SECONDS = 30.0
_SETTLED = (State.RUNNING, State.PAUSED)
"""The states that somebody else may change."""

_log = structlog.get_logger(__name__)


class Reconciler:
    """Judges every row and every trace once, and unclear ones again."""

    def __init__(self, context: Context, starts: Starts, stops: Stops) -> None:
        self._context = context
        self._starts = starts
        self._stops = stops
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._unclear: dict[str, float] = {}  # id -> when to look again, in loop time
        self._delays: dict[str, float] = {}  # id -> how long it was put off for

    async def run(self) -> None:
        """Returns when all live sandboxes were looked at; starts and removals go on behind."""
        rows = await self._context.store.all()
        for runtime in self._context.runtimes.opened.values():
            await self._remove_strangers(runtime, rows)
        await asyncio.gather(*(self._judge(sandbox) for sandbox in rows))
        _log.info("reconcile.done", sandboxes=len(rows))

    def changed(self, sandbox_id: str) -> None:
        """Somebody else had a hand in it: find out, behind the scenes, what it is now."""
        self._context.tasks.spawn(self._look_at_change(sandbox_id), f"change of {sandbox_id}")

    async def _look_at_change(self, sandbox_id: str) -> None:
        before = await self._context.store.get(sandbox_id)
        if before is None or before.status.state not in _SETTLED:
            return
        try:
            after = await self._look(before)
        except Exception as error:  # such as an engine that is away
            await self.doubt(before, error)
            return
        if after and after.status.state in _SETTLED and after.status.state is not before.status.state:
            _log.warning("reconcile.changed", sandbox=sandbox_id, state=str(after.status.state))

    def look_again(self) -> None:
        """Judge once more, behind the scenes, what was unclear a while ago."""
        now = asyncio.get_running_loop().time()
        for sandbox_id in [key for key, when in self._unclear.items() if when <= now]:
            del self._unclear[sandbox_id]
            self._context.tasks.spawn(self._judge_again(sandbox_id), f"look again at {sandbox_id}")

    async def doubt(self, sandbox: Sandbox, error: Exception) -> None:
        """Have `look_again` find out the state of a sandbox that cannot be known now."""
        _log.error("reconcile.unclear", sandbox=sandbox.id, error=str(error), **_trace(error))
        message = f"its true state could not be found out: {str(error) or type(error).__name__}"
        delay = min(2 * self._delays.get(sandbox.id, _FIRST_LOOK_SECONDS / 2), _LAST_LOOK_SECONDS)
        self._delays[sandbox.id] = delay
        self._unclear[sandbox.id] = asyncio.get_running_loop().time() + delay
        try:
            await self._context.store.update(sandbox.id, lambda s: noted(s, Reason.UNKNOWN, message))
        except CasuloError as second:
            _log.error("reconcile.mark_failed", sandbox=sandbox.id, error=str(second))

    async def _judge_again(self, sandbox_id: str) -> None:
        sandbox = await self._context.store.get(sandbox_id)
        if sandbox and sandbox.status.reason == Reason.UNKNOWN:
            await self._judge(sandbox)
        if sandbox_id not in self._unclear:
            self._delays.pop(sandbox_id, None)

    async def _remove_strangers(self, runtime: Runtime, rows: Sequence[Sandbox]) -> None:
        """Traces without a row are of sandboxes whose removal was cut short after the row went."""
        known = {sandbox.id for sandbox in rows}
        try:
            strangers = await runtime.list() - known
        except Exception:  # a runtime that cannot look must not keep the others from their work
            _log.exception("reconcile.list_failed", runtime=runtime.name)
            return
        for sandbox_id in strangers:
            _log.warning("reconcile.stranger", sandbox=sandbox_id, runtime=runtime.name)
            self._context.tasks.spawn(runtime.destroy(sandbox_id, None, 0), f"remove stranger {sandbox_id}")

    async def _judge(self, sandbox: Sandbox) -> None:
        state = sandbox.status.state
        async with self._turns:
            try:
                if state is State.STOPPING:
                    self._stops.begin(sandbox.id, sandbox.status.reason)
                elif sandbox.expires_at is not None and sandbox.expires_at <= self._context.now():
                    await self._stops.expire(sandbox.id)
                elif state is State.PENDING:
                    self._starts.again(sandbox, self._context.runtimes.named(sandbox.runtime))
                elif state not in ENDED:
                    await self._look(sandbox)
            except Exception as error:  # one sandbox must not take the server down
                await self.doubt(sandbox, error)

    async def _look(self, sandbox: Sandbox) -> Sandbox | None:
        runtime = self._context.runtimes.named(sandbox.runtime)
        if sandbox.handle is None:
            raise ValueError(f"sandbox {sandbox.id} is {sandbox.status.state} without a handle")
        async with asyncio.timeout(_INSPECT_SECONDS), self._context.locks.hold(sandbox.id):
            reality = await runtime.inspect(sandbox.id, sandbox.handle)
            if reality.alive and runtime.egress and sandbox.spec.network_policy:
                await runtime.egress.apply(sandbox.id, sandbox.spec.network_policy)
            return await self._context.settle(sandbox.id, reality)


def _trace(error: Exception) -> dict[str, Any]:
    return {} if isinstance(error, CasuloError) else {"exc_info": error}
