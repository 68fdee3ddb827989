# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates: a sandbox is started for each, waited for, kept as a snapshot, and removed.

The row comes first and is a snapshot's, whose id says that it is a template; so deleting, restarts and
what a runtime lost are settled as for any snapshot. A sandbox that a killed server was making one from
is named by its metadata, and removed by the next server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from casulo.control.context import Context
from casulo.control.snapshots import Snapshots
from casulo.control.stops import Stops
from casulo.control.transitions import Reason
from casulo.model.draft import ISOLATION, Draft
from casulo.model.errors import CasuloError, Code, RuntimeFailure, Unsupported
from casulo.model.keys import Caller
from casulo.model.sandbox import Handle, Isolation, Sandbox, Spec
from casulo.model.snapshot import Snapshot, SnapshotReason, SnapshotState, SnapshotStatus
from casulo.model.template import BUILDS, Ordered, Readiness, check, is_template, new_id, parsed
from casulo.model.template import template_not_found as not_found
from casulo.runtimes import probes
from casulo.runtimes.base import Runtime
from casulo.store.query import Page, SnapshotQuery

_LIFETIME_SECONDS = 3600
_PAUSE_SECONDS = 0.1
_PAGE = 200
_log = structlog.get_logger(__name__)

Plan = Callable[[Draft, Caller], Awaitable[tuple[Runtime, Spec, Draft]]]
Create = Callable[[Draft, Caller], Awaitable[Sandbox]]


class Templates:
    """All that the API may ask about templates. `plan` and `create` are the lifecycle's own."""

    def __init__(self, context: Context, snapshots: Snapshots, stops: Stops) -> None:
        self._context = context
        self._snapshots = snapshots
        self._stops = stops

    def supported(self) -> None:
        """Unsupported unless a runtime of this server can keep sandboxes."""
        if not any(runtime.snapshots for runtime in self._context.runtimes.opened.values()):
            raise Unsupported(
                "no runtime of this server can keep templates",
                code=Code.TEMPLATE_NOT_SUPPORTED,
                hint="create sandboxes from an image",
            )

    async def create(
        self, draft: Draft, ordered: Ordered, caller: Caller, plan: Plan, create: Create
    ) -> Snapshot:
        """Accept one; it is Creating when this returns, and made behind."""
        self.supported()
        check(ordered)
        template_id = new_id()
        told = {**self._strongest(), **draft.extensions}
        metadata = {**ordered.metadata, BUILDS: template_id}
        wanted = replace(
            draft, extensions=told, metadata=metadata, timeout_seconds=_lifetime(ordered.readiness)
        )
        runtime, spec, _ = await plan(wanted, caller)
        row = self._row(template_id, runtime, spec, ordered, caller)
        await self._context.store.snapshots.insert(row)
        work = self._build(row, wanted, ordered.readiness, lambda: create(wanted, caller))
        self._context.tasks.spawn(work, f"template {row.id}")
        return row

    async def get(self, template_id: str) -> Snapshot:
        """The template, or NotFound."""
        found = await self._context.store.snapshots.get(template_id) if is_template(template_id) else None
        if found is None:
            raise not_found(template_id)
        return found

    async def list(
        self, metadata: Mapping[str, str], page: int, page_size: int, owner: str | None
    ) -> Page[Snapshot]:
        """One page of those that carry all of `metadata`, newest first."""
        found = [one for one in await self._all(owner) if _carries(Ordered.of(one), metadata)]
        start = (page - 1) * page_size
        return Page(tuple(found[start : start + page_size]), len(found), page, page_size)

    async def delete(self, template_id: str) -> None:
        """Remove every trace; sandboxes made from it go on."""
        await self.get(template_id)
        await self._snapshots.delete(template_id)

    async def recover(self) -> None:
        """After a restart: remove the sandboxes that templates were being made from."""
        for sandbox in await self._context.store.all():
            template_id = sandbox.metadata.get(BUILDS, "")
            row = await self._context.store.snapshots.get(template_id) if is_template(template_id) else None
            if row is not None and row.owner == sandbox.owner:  # else somebody else wrote it there
                self._stops.begin(sandbox.id, Reason.DELETED)

    async def _all(self, owner: str | None) -> Sequence[Snapshot]:
        found: Sequence[Snapshot] = ()
        query = SnapshotQuery(page_size=_PAGE, owner=owner, templates=True)
        while True:
            page = await self._context.store.snapshots.list(query)
            found = (*found, *page.items)
            if not page.has_next:
                return found
            query = replace(query, page=query.page + 1)

    def _strongest(self) -> dict[str, str]:
        """Where memory is kept a template is worth most; else the default runtime makes it."""
        for runtime in self._context.runtimes.opened.values():
            if Isolation.MICROVM in runtime.capabilities.isolations and runtime.snapshots:
                return {ISOLATION: Isolation.MICROVM.value}
        return {}

    def _row(
        self, template_id: str, runtime: Runtime, spec: Spec, ordered: Ordered, caller: Caller
    ) -> Snapshot:
        if runtime.snapshots is None:
            raise Unsupported(
                f"the runtime {runtime.name!r} cannot keep templates",
                code=Code.TEMPLATE_NOT_SUPPORTED,
                hint="enable a runtime that takes snapshots, and make it the default",
            )
        now = self._context.now()
        told = {**spec.extensions, BUILDS: ordered.encode()}
        status = SnapshotStatus(SnapshotState.CREATING, SnapshotReason.ACCEPTED, "", now)
        kept = replace(spec, extensions=told)
        here = self._context.store.here
        return Snapshot(template_id, "", kept, runtime.name, status, now, template_id, caller.owner, here)

    async def _build(
        self, row: Snapshot, draft: Draft, readiness: Readiness, create: Callable[[], Awaitable[Sandbox]]
    ) -> None:
        try:
            sandbox = await create()
            try:
                await self._ready(sandbox, readiness)
                await self._snapshots.make(replace(row, sandbox_id=sandbox.id))
            finally:
                await asyncio.shield(self._stops.stop(sandbox.id, Reason.DELETED))
        except Exception as error:  # whatever failed, the row must not stay halfway
            known = isinstance(error, CasuloError)
            _log.warning(
                "template.failed", template=row.id, error=str(error), exc_info=None if known else error
            )
            await self._snapshots.give_up(row.id, SnapshotReason.FAILED, str(error) or type(error).__name__)

    async def _ready(self, sandbox: Sandbox, readiness: Readiness) -> None:
        deadline = time.monotonic() + readiness.patience
        handle = sandbox.handle
        if not readiness.probe or handle is None:
            await asyncio.sleep(readiness.patience)
        while readiness.probe and handle and not await _holds(handle, readiness.probe, deadline):
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"the probe {readiness.probe!r} did not succeed within {readiness.patience} s",
                    code=Code.SNAPSHOT_CREATE_FAILED,
                )
            await asyncio.sleep(_PAUSE_SECONDS)


async def _holds(handle: Handle, probe: str, deadline: float) -> bool:
    left = max(0.1, deadline - time.monotonic())
    return await asyncio.to_thread(probes.holds, handle, parsed(probe), left)


def _lifetime(readiness: Readiness) -> int:
    """Should everything else fail, it ends by itself."""
    return _LIFETIME_SECONDS + readiness.patience


def _carries(ordered: Ordered, metadata: Mapping[str, str]) -> bool:
    return all(ordered.metadata.get(key) == value for key, value in metadata.items())
