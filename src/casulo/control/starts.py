# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Starting sandboxes: intent first, then a turn in the queue, then the runtime, then Running.

A start is a task of the service, not of the request that wanted it. So it ends in one of two ways
whatever happens to the request: the sandbox runs, or nothing of it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from casulo.control.admission import Admission
from casulo.control.context import Context, Launch
from casulo.control.events import Kind, Milestones
from casulo.control.stops import Stops
from casulo.control.transitions import Reason, moved, noted
from casulo.control.vaults import Vaults
from casulo.model.credentials import Credentials
from casulo.model.draft import ends_at
from casulo.model.errors import CasuloError, Code, Conflict, Forbidden, TimedOut
from casulo.model.keys import Limits
from casulo.model.sandbox import Handle, Sandbox
from casulo.model.states import State
from casulo.runtimes.base import Deaf, Parks, Runtime
from casulo.runtimes.bootchannel import start_limit
from casulo.store.query import Claim

_Step = Callable[[], Awaitable[None]]
_log = structlog.get_logger(__name__)


class Claimed(Exception):
    """Another request holds the idempotency key; nothing was recorded for this one."""


@dataclass(frozen=True)
class Order:
    """One start: what, where, and how.

    `unused` says that a parked member with the sandbox's id waits to become it, and puts it back.
    `patient` starts wait for their turn without an end.
    """

    sandbox: Sandbox
    runtime: Runtime
    credentials: Credentials | None = None
    unused: Callable[[], None] | None = None
    patient: bool = False


class Starts:
    """All starts. How many run at once, and in which order, `Admission` decides."""

    def __init__(self, context: Context, stops: Stops, vaults: Vaults) -> None:
        self._context = context
        self._stops = stops
        self._vaults = vaults
        settings = context.settings
        self.admission = Admission(
            settings.admission, settings.sandbox.max_concurrent_starts, settings.data_dir
        )

    async def run(self, order: Order, claim: Claim | None, limits: Limits) -> Sandbox:
        """Record and start. Claimed when the key is taken, Forbidden when it would pass its owner's limits.

        When the caller goes away the sandbox is undone, unless a claim lets somebody find it later.
        """
        sandbox = order.sandbox
        task = self._begin(order, lambda: self._record(sandbox, claim, limits))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if claim is None:
                self._stops.begin(sandbox.id, Reason.CREATE_CANCELLED)
            raise

    def again(self, sandbox: Sandbox, runtime: Runtime) -> None:
        """Start over what a server that is gone began: remove what there is of it, then create it."""
        self._begin(Order(sandbox, runtime, patient=True), lambda: self._clear(sandbox, runtime))

    def _begin(self, order: Order, prepare: _Step) -> asyncio.Task[Sandbox]:
        sandbox_id = order.sandbox.id
        task = self._context.tasks.spawn(self._whole(order, prepare), f"start {sandbox_id}")
        self._context.starting[sandbox_id] = Launch(task)
        task.add_done_callback(lambda _: self._context.starting.pop(sandbox_id))
        return task

    async def _whole(self, order: Order, prepare: _Step) -> Sandbox:
        sandbox, marks = order.sandbox, Milestones()
        try:
            await self._prepared(order, prepare)
            marks.reached("record")
            order = replace(order, sandbox=await self._vaults.equip(sandbox, order.runtime))
            return await self._adopted(order, marks) or await self._cold(order, marks)
        except asyncio.CancelledError:
            raise _deleted(sandbox.id) from None  # only a stop cancels a start, and it undoes
        except (Claimed, Forbidden):  # before anything was recorded
            raise
        except Exception as error:  # whatever failed, nothing may stay behind
            if self._stops.running(sandbox.id):
                raise _deleted(sandbox.id) from error
            code = error.code if isinstance(error, CasuloError) else Code.UNKNOWN
            await self._undo(sandbox.id, f"{code}: {error}")
            self._context.tell(Kind.START_FAILED, sandbox, code, marks.stages)
            raise

    async def _prepared(self, order: Order, prepare: _Step) -> None:
        try:
            await prepare()
        except Exception:
            if order.unused:  # nothing names the member yet, so another may have it
                order.unused()
            raise

    async def _adopted(self, order: Order, marks: Milestones) -> Sandbox | None:
        """The sandbox that the parked member became; None when there is none, or it turned out deaf."""
        sandbox, runtime = order.sandbox, order.runtime
        if order.unused is None or not isinstance(runtime, Parks) or runtime.parking is None:
            return None
        async with self._context.locks.hold(sandbox.id):
            try:
                adoption = runtime.parking.adopt(sandbox.id, sandbox.spec)
                handle = await self._within_limit(adoption, sandbox)
            except Deaf as error:
                if sandbox.spec.pre_start:
                    raise  # it may have run already
                _log.warning("sandbox.member_deaf", sandbox=sandbox.id, error=error.message)
                await runtime.destroy(sandbox.id, None, 0)
                return None
            marks.reached("adopt")
            return await self._commit(order, handle, marks)

    async def _cold(self, order: Order, marks: Milestones) -> Sandbox:
        sandbox, runtime = order.sandbox, order.runtime
        await runtime.provide(sandbox.id, sandbox.spec, order.credentials)
        marks.reached("image")

        async def tell(reason: str, message: str) -> None:
            await self._context.store.update(sandbox.id, lambda found: _waiting(found, reason, message))

        turn = self.admission.turn(runtime.name, sandbox.owner, tell, patient=order.patient)
        async with turn, self._context.locks.hold(sandbox.id):
            marks.reached("queue")
            handle = await self._within_limit(runtime.create(sandbox.id, sandbox.spec), sandbox)
            marks.reached("runtime")
            return await self._commit(order, handle, marks)

    async def _commit(self, order: Order, handle: Handle, marks: Milestones) -> Sandbox:
        recorded, now = order.sandbox, self._context.now()
        running = await self._context.update(recorded.id, lambda s: _running(s, recorded, handle, now))
        marks.reached("commit")
        seconds = (now - recorded.created_at).total_seconds()
        _log.info("sandbox.running", sandbox=recorded.id, seconds=seconds)
        self._context.tell(Kind.RUNNING, running, Reason.RUNNING, marks.stages)
        return running

    async def _record(self, sandbox: Sandbox, claim: Claim | None, limits: Limits) -> None:
        if await self._context.store.insert(sandbox, claim, limits):
            raise Claimed

    async def _clear(self, sandbox: Sandbox, runtime: Runtime) -> None:
        _log.info("sandbox.started_over", sandbox=sandbox.id)
        await runtime.destroy(sandbox.id, None, 0)

    async def _within_limit(self, create: Coroutine[Any, Any, Handle], sandbox: Sandbox) -> Handle:
        limit = start_limit(self._context.settings.sandbox.start_timeout_seconds, sandbox.spec)
        try:
            async with asyncio.timeout(limit) as timer:
                return await create
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise TimedOut(
                f"sandbox {sandbox.id} did not start within {limit:g} s and was removed",
                code=Code.SANDBOX_START_TIMEOUT,
                hint="raise [sandbox] start_timeout_seconds if this machine needs longer",
            ) from error

    async def _undo(self, sandbox_id: str, why: str) -> None:
        self._context.starting[sandbox_id].interruptible = False
        try:
            await self._stops.stop(sandbox_id, Reason.START_FAILED, why)
        except CasuloError as error:  # the stop has logged it and will be tried again
            _log.info("sandbox.undo_incomplete", sandbox=sandbox_id, code=error.code)


def _waiting(found: Sandbox, reason: str, message: str) -> Sandbox:
    """Why it is still Pending; whatever else happened to it meanwhile says more."""
    return noted(found, reason, message) if found.status.state is State.PENDING else found


def _running(found: Sandbox, recorded: Sandbox, handle: Handle, now: datetime) -> Sandbox:
    """Its time begins when it runs, not when it joined the queue; a renewal meanwhile stands."""
    ends = found.expires_at
    if ends is not None and ends == recorded.expires_at:
        ends = ends_at(now, found.spec.timeout_seconds)
    return moved(found, State.RUNNING, Reason.RUNNING, now, handle=handle, expires_at=ends)


def _deleted(sandbox_id: str) -> Conflict:
    return Conflict(
        f"sandbox {sandbox_id} was deleted while it was being created",
        code=Code.SANDBOX_DELETED_DURING_CREATE,
        hint="create another one if the deletion was not meant",
    )
