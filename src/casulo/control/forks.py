# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Forking: children that begin where a running sandbox stands. All of them run, or none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from casulo.control.context import Context
from casulo.control.snapshots import Snapshots
from casulo.control.stops import Stops
from casulo.control.transitions import Reason
from casulo.model.draft import POOL_REF, Draft
from casulo.model.errors import CasuloError, Code, InvalidRequest, Unsupported
from casulo.model.keys import Caller
from casulo.model.sandbox import Sandbox
from casulo.model.template import BUILDS

PARENT = "casulo.parent"
"""Key of the metadata by which the children of a sandbox are found."""

MOST = 64
_NAME = "fork"
_log = structlog.get_logger(__name__)


class Create(Protocol):
    """The lifecycle's own."""

    def __call__(self, draft: Draft, *, caller: Caller) -> Awaitable[Sandbox]: ...


@dataclass(frozen=True)
class Wish:
    """What the children are; everything else is as with their parent."""

    count: int = 1
    timeout_seconds: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Forks:
    """Forks on one server."""

    def __init__(self, context: Context, snapshots: Snapshots, stops: Stops, create: Create) -> None:
        self._context = context
        self._snapshots = snapshots
        self._stops = stops
        self._create = create

    async def fork(self, sandbox_id: str, wish: Wish, caller: Caller) -> tuple[Sandbox, ...]:
        """The children, running. It goes on to its end when whoever called goes away."""
        if not 1 <= wish.count <= MOST:
            raise InvalidRequest(
                f"count: a sandbox has 1 to {MOST} children at once", code=Code.INVALID_PARAMETER
            )
        parent = await self._context.get(sandbox_id)
        if parent.spec.volumes:
            raise Unsupported(
                f"sandbox {sandbox_id} has volumes, which children cannot have each for themselves",
                code=Code.NOT_SUPPORTED,
                hint="take a snapshot, and create sandboxes of it with the volumes that they shall have",
            )
        return await self._context.tasks.run(self._fork(parent, wish, caller), f"fork {sandbox_id}")

    async def _fork(self, parent: Sandbox, wish: Wish, caller: Caller) -> tuple[Sandbox, ...]:
        snapshot = await self._snapshots.taken(parent.id, _NAME)
        try:
            draft = _child(parent, snapshot.id, wish)
            made = await asyncio.gather(
                *(self._create(draft, caller=caller) for _ in range(wish.count)), return_exceptions=True
            )
            failed = [one for one in made if isinstance(one, BaseException)]
            children = tuple(one for one in made if not isinstance(one, BaseException))
            if failed:
                await self._undo(children)
                raise failed[0]
            return children
        finally:
            await self._forget(snapshot.id)

    async def _undo(self, children: tuple[Sandbox, ...]) -> None:
        stopping = (self._stops.stop(child.id, Reason.START_FAILED) for child in children)
        for outcome in await asyncio.gather(*stopping, return_exceptions=True):
            if isinstance(outcome, BaseException):  # it is tried again
                _log.warning("fork.undo_incomplete", error=str(outcome))

    async def _forget(self, snapshot_id: str) -> None:
        try:
            await self._snapshots.delete(snapshot_id)
        except CasuloError as error:  # it is tried again, and takes nothing from the children
            _log.warning("fork.snapshot_left", snapshot=snapshot_id, error=error.message)


def _child(parent: Sandbox, snapshot_id: str, wish: Wish) -> Draft:
    """As its parent, with another source."""
    spec = parent.spec
    metadata = {key: value for key, value in parent.metadata.items() if key != BUILDS}
    return Draft(
        image="",
        snapshot_id=snapshot_id,
        entrypoint=spec.entrypoint or None,
        resource_limits=spec.resource_limits,
        env={**spec.env, **wish.env},
        metadata={**metadata, PARENT: parent.id},
        extensions={key: value for key, value in spec.extensions.items() if key not in (POOL_REF, BUILDS)},
        timeout_seconds=wish.timeout_seconds,
        periodic=spec.periodic,
        credential_proxy=spec.credential_proxy,
    )
