# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pruning templates: which of them nobody needs, and what uses the others.

A template is needed while a sandbox that was made of it is there: it may be wanted again. One that is being
made cannot be removed by anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from casulo.control.context import Context
from casulo.control.snapshots import Snapshots
from casulo.model.errors import Code, Conflict
from casulo.model.keys import Caller
from casulo.model.pruning import Found, Pruned
from casulo.model.sandbox import Sandbox
from casulo.model.snapshot import Snapshot, SnapshotState
from casulo.model.states import State
from casulo.model.template import NAMED, is_template
from casulo.runtimes.base import Ages, Prunes

_KIND = "template"


class Pruning:
    """What may go, on one server."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots

    async def prune(self, caller: Caller, *, unused: bool, dry: bool) -> Pruned:
        """Remove templates of the caller; for an operator also what runtimes made by themselves."""
        rows = [row for row in await self._context.store.snapshots.all() if _is_one(row, caller)]
        users = _users(await self._context.store.all())
        stale = {row.id: why for row in rows if (why := await self._outdated(row))}
        told = plan(rows, users, stale, unused)
        if not dry:
            for found in told.removed:
                await self._snapshots.delete(found.id)
        return told + await self._behind(caller, unused, dry)

    async def _outdated(self, row: Snapshot) -> str:
        runtime = self._context.runtimes.opened.get(row.runtime)
        ability = runtime.snapshots if runtime else None
        if row.status.state is not SnapshotState.READY or ability is None or not isinstance(ability, Ages):
            return ""
        return await ability.outdated(row.id)

    async def _behind(self, caller: Caller, unused: bool, dry: bool) -> Pruned:
        told = Pruned()
        if caller.seen_owner is None:
            for runtime in self._context.runtimes.opened.values():
                if isinstance(runtime, Prunes):
                    told += await runtime.prune(unused=unused, dry=dry)
        return told

    async def unstarted(self, snapshot_id: str) -> None:
        """Conflict while a sandbox is being made of it."""
        sandboxes = await self._context.store.all()
        starting = [one.id for one in sandboxes if _needs(one, snapshot_id)]
        if starting:
            raise Conflict(
                f"{snapshot_id} is in use: sandbox {starting[0]} is being made of it",
                code=Code.TEMPLATE_IN_USE if is_template(snapshot_id) else Code.SNAPSHOT_INVALID_STATE,
                hint="try again when the sandbox runs, or delete the sandbox",
            )


def plan(
    rows: Sequence[Snapshot], users: Mapping[str, Sequence[str]], stale: Mapping[str, str], unused: bool
) -> Pruned:
    """Pure. `rows` are templates, the oldest first; `users` names the sandboxes of each."""
    newest = {(row.owner, row.name): row.id for row in rows if row.status.state is SnapshotState.READY}
    removed, kept = [], []
    for row in rows:
        using = users.get(row.id, ())
        why = _why(row, stale.get(row.id, ""), newest.get((row.owner, row.name)))
        found = Found(_KIND, row.id, why or "unused", row.name.removeprefix(NAMED), used_by=using)
        if row.status.state in (SnapshotState.CREATING, SnapshotState.DELETING):
            kept.append(Found(_KIND, row.id, str(row.status.state).lower(), found.name))
        elif using:
            kept.append(Found(_KIND, row.id, "in use", found.name, used_by=using))
        elif why or unused:
            removed.append(found)
    return Pruned(tuple(removed), tuple(kept))


def _why(row: Snapshot, stale: str, newest: str | None) -> str:
    if row.status.state is SnapshotState.FAILED:
        return "failed"
    return stale or ("" if newest in (row.id, None) else "replaced by a newer one")


def _is_one(row: Snapshot, caller: Caller) -> bool:
    return caller.sees(row.owner) and (is_template(row.id) or row.name.startswith(NAMED))


def _users(sandboxes: Iterable[Sandbox]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sandbox in sandboxes:
        if sandbox.spec.snapshot_id and sandbox.status.state is not State.STOPPING:
            found.setdefault(sandbox.spec.snapshot_id, []).append(sandbox.id)
    return found


def _needs(sandbox: Sandbox, snapshot_id: str) -> bool:
    return sandbox.spec.snapshot_id == snapshot_id and sandbox.status.state is State.PENDING
