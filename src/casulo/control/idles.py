# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pausing sandboxes that nobody uses, where that was asked for.

A sandbox is used while its daemon serves a request, which includes those for programs in it, or runs a
command; and whoever looks up where it is, is about to use it. Only the daemon knows the first, since
clients talk to it directly; it is asked when the time could have come, and not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from casulo.control.context import Context
from casulo.control.events import Event, Kind
from casulo.model.errors import CasuloError
from casulo.model.idle import idle_seconds
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.runtimes import activity

_SOONEST_SECONDS = 0.5
_LATER_SECONDS = 30.0
_log = structlog.get_logger(__name__)


class Idles:
    """Which sandboxes wait for their idleness, and when each is looked at next, in loop time."""

    def __init__(self, context: Context, pause: Callable[[str], Awaitable[Sandbox]]) -> None:
        self._context = context
        self._pause = pause
        self._due: dict[str, float] = {}
        self._reached: dict[str, float] = {}
        context.events.listen(self._told)

    async def open(self) -> None:
        """Go on with what an earlier server left."""
        for sandbox in await self._context.store.all():
            if sandbox.status.state is State.RUNNING:
                self._expect(sandbox)

    def reached(self, sandbox: Sandbox) -> None:
        """Somebody looked up where it is."""
        if sandbox.id in self._due:
            self._reached[sandbox.id] = asyncio.get_running_loop().time()

    def look(self) -> None:
        """Ask those whose time could have come. Returns at once."""
        now = asyncio.get_running_loop().time()
        for sandbox_id in [key for key, when in self._due.items() if when <= now]:
            self._due[sandbox_id] = now + _LATER_SECONDS  # until the answer says better
            self._context.tasks.spawn(self._judge(sandbox_id), f"idleness of {sandbox_id}")

    def _told(self, event: Event) -> None:
        if event.kind in (Kind.RUNNING, Kind.RESUMED):
            self._expect(event.sandbox)
        else:
            self._due.pop(event.sandbox.id, None)
            self._reached.pop(event.sandbox.id, None)

    def _expect(self, sandbox: Sandbox) -> None:
        limit = idle_seconds(sandbox.spec.extensions)
        if limit is not None:
            now = asyncio.get_running_loop().time()
            self._due[sandbox.id] = now + limit
            self._reached[sandbox.id] = now  # nobody used it before it ran

    async def _judge(self, sandbox_id: str) -> None:
        sandbox = await self._context.store.get(sandbox_id)
        limit = idle_seconds(sandbox.spec.extensions) if sandbox else None
        if sandbox is None or sandbox.handle is None or limit is None:
            self._due.pop(sandbox_id, None)
            return
        if sandbox.status.state is not State.RUNNING:
            return
        try:
            told = await asyncio.to_thread(activity.ask, sandbox.handle)
            unused = 0.0 if told.busy else min(told.idle_seconds, self._since(sandbox_id))
            if unused >= limit:
                _log.info("sandbox.idle", sandbox=sandbox_id, seconds=round(unused, 1))
                await self._pause(sandbox_id)
            else:
                self._later(sandbox_id, max(limit - unused, _SOONEST_SECONDS))
        except CasuloError as error:  # it is being deleted, or its daemon is busy beyond measure
            _log.info("sandbox.idleness_unknown", sandbox=sandbox_id, error=error.message)

    def _since(self, sandbox_id: str) -> float:
        now = asyncio.get_running_loop().time()
        return now - self._reached.get(sandbox_id, now)

    def _later(self, sandbox_id: str, seconds: float) -> None:
        if sandbox_id in self._due:
            self._due[sandbox_id] = asyncio.get_running_loop().time() + seconds
