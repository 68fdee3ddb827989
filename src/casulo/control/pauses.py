# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Freezing and thawing, through the ability that the sandbox's runtime offers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from casulo.control.context import Context
from casulo.control.events import Kind
from casulo.control.transitions import Reason
from casulo.model.errors import CasuloError, Code, Conflict, RuntimeFailure, Unavailable, Unsupported
from casulo.model.sandbox import Handle, Sandbox
from casulo.model.states import State, require
from casulo.runtimes.base import Pause, Runtime

Act = Callable[[str, Handle], Awaitable[None]]
Doubt = Callable[[Sandbox, Exception], Awaitable[None]]
"""Called with a sandbox whose state is not known now, and is to be found out later."""


@dataclass(frozen=True)
class _Step:
    """One direction: the state on the way, the one at the end, and what to call a failure."""

    name: str
    via: State
    to: State
    via_reason: str
    to_reason: str
    failure: str
    kind: Kind


_PAUSE = _Step(
    name="paused",
    via=State.PAUSING,
    to=State.PAUSED,
    via_reason=Reason.PAUSING,
    to_reason=Reason.PAUSED,
    failure=Code.SANDBOX_PAUSE_FAILED,
    kind=Kind.PAUSED,
)
_RESUME = _Step(
    name="resumed",
    via=State.RESUMING,
    to=State.RUNNING,
    via_reason=Reason.RESUMING,
    to_reason=Reason.RUNNING,
    failure=Code.SANDBOX_RESUME_FAILED,
    kind=Kind.RESUMED,
)


class Pauses:
    """Each call runs to its end even when the caller goes away."""

    def __init__(self, context: Context, doubt: Doubt) -> None:
        self._context = context
        self._doubt = doubt
        self._waking: dict[str, asyncio.Task[Sandbox]] = {}

    async def wake(self, sandbox: Sandbox) -> Sandbox:
        """Resume it for somebody who wants to reach it; several who do wait for one resume."""
        task = self._waking.get(sandbox.id)
        if task is None:
            if sandbox.status.state is State.RESUMING:
                return sandbox  # somebody resumes it already, and not for us
            work = self._apply(sandbox.id, _RESUME, lambda ability: ability.resume)
            task = self._context.tasks.spawn(work, f"wake {sandbox.id}")
            self._waking[sandbox.id] = task
            task.add_done_callback(lambda _: self._waking.pop(sandbox.id))
        return await asyncio.shield(task)

    async def pause(self, sandbox_id: str) -> Sandbox:
        """Freeze; returns it Paused."""
        return await self._context.tasks.run(
            self._apply(sandbox_id, _PAUSE, lambda ability: ability.pause), f"pause {sandbox_id}"
        )

    async def resume(self, sandbox_id: str) -> Sandbox:
        """Thaw; returns it Running."""
        return await self._context.tasks.run(
            self._apply(sandbox_id, _RESUME, lambda ability: ability.resume), f"resume {sandbox_id}"
        )

    async def _apply(self, sandbox_id: str, step: _Step, of: Callable[[Pause], Act]) -> Sandbox:
        async with self._context.locks.hold(sandbox_id):
            sandbox = await self._context.get(sandbox_id)
            runtime = self._context.runtimes.named(sandbox.runtime)
            act = of(_ability(runtime))
            require(sandbox_id, sandbox.status.state, step.via)
            moved = await self._context.move(sandbox_id, step.via, step.via_reason)
            handle = _handle_of(moved)
            try:
                await act(sandbox_id, handle)
            except Exception as error:  # whatever failed, the row must not stay halfway
                await self._settle(runtime, moved, handle)
                raise _failure(sandbox_id, step, error) from error
            settled = await self._context.move(sandbox_id, step.to, step.to_reason)
        self._context.tell(step.kind, settled, step.to_reason)
        return settled

    async def _settle(self, runtime: Runtime, sandbox: Sandbox, handle: Handle) -> None:
        try:
            reality = await runtime.inspect(sandbox.id, handle)
        except Exception as error:  # such as an engine that is away
            await self._doubt(sandbox, error)
            return
        await self._context.settle(sandbox.id, reality)


def _ability(runtime: Runtime) -> Pause:
    if runtime.pause is not None:
        return runtime.pause
    raise Unsupported(
        f"the runtime {runtime.name!r} cannot pause sandboxes on this host",
        code=Code.NOT_SUPPORTED,
        hint=runtime.capabilities.missing.get("pause", "`osb doctor` says what this host lacks for it"),
    )


def _handle_of(sandbox: Sandbox) -> Handle:
    if sandbox.handle is None:
        raise RuntimeFailure(f"sandbox {sandbox.id} is {sandbox.status.state} but was never started")
    return sandbox.handle


def _failure(sandbox_id: str, step: _Step, error: Exception) -> CasuloError:
    """Whose fault it is stays what it was: a sandbox that forbids it, a host that cannot now, or we."""
    told = error.message if isinstance(error, CasuloError) else str(error) or type(error).__name__
    message = f"sandbox {sandbox_id} could not be {step.name}: {told}"
    if isinstance(error, Conflict):
        return Conflict(message, code=error.code, hint=error.hint)
    if isinstance(error, Unavailable):
        return Unavailable(message, code=error.code, hint=error.hint, retry_after=error.retry_after)
    hint = error.hint if isinstance(error, CasuloError) else ""
    return RuntimeFailure(message, code=step.failure, hint=hint)
