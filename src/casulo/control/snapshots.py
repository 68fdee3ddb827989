# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Taking, keeping and deleting snapshots, through the ability that a sandbox's runtime offers.

The row comes first: a snapshot is accepted as Creating and made by a task of the service, which
holds the sandbox's lock, so that a pause or a delete of the source waits for it. It ends Ready, or
Failed with nothing left. A delete stores its intent and removes the row last. So whatever a killed
server leaves is settled by `recover`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import structlog

from casulo.control.context import Context
from casulo.control.vaults import Vaults
from casulo.model.errors import (
    CasuloError,
    Code,
    Conflict,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    TimedOut,
    Unsupported,
)
from casulo.model.sandbox import Handle, Sandbox
from casulo.model.snapshot import (
    Change,
    Snapshot,
    SnapshotReason,
    SnapshotState,
    SnapshotStatus,
    moved,
    require_ready,
)
from casulo.model.snapshot import snapshot_not_found as not_found
from casulo.model.states import State
from casulo.runtimes.base import Compares, Runtime
from casulo.runtimes.base import Snapshots as Ability
from casulo.store.query import Page, SnapshotQuery

MAX_NAME_LENGTH = 255
_RETRY_SECONDS = 30.0
_log = structlog.get_logger(__name__)


class Snapshots:
    """All that the API may ask about snapshots."""

    def __init__(self, context: Context, vaults: Vaults) -> None:
        self._context = context
        self._vaults = vaults
        self._rows = context.store.snapshots
        self._deleting: dict[str, asyncio.Task[None]] = {}
        self._owed: dict[str, float] = {}  # id -> when to try its removal again, in loop time

    async def take(self, sandbox_id: str, name: str = "") -> Snapshot:
        """Accept a snapshot of a running sandbox; it is Creating when this returns, and made behind."""
        snapshot, ability = await self._accept(sandbox_id, name)
        self._context.tasks.spawn(self._make(snapshot, ability), f"snapshot {snapshot.id}")
        return snapshot

    async def taken(self, sandbox_id: str, name: str) -> Snapshot:
        """The same, Ready when this returns. RuntimeFailure says why it is not."""
        snapshot, ability = await self._accept(sandbox_id, name)
        await self._make(snapshot, ability)
        found = await self.get(snapshot.id)
        if found.status.state is not SnapshotState.READY:
            await self.delete(snapshot.id)
            raise RuntimeFailure(
                f"sandbox {sandbox_id} could not be copied: {found.status.message}",
                code=Code.SNAPSHOT_CREATE_FAILED,
            )
        return found

    async def _accept(self, sandbox_id: str, name: str) -> tuple[Snapshot, Ability]:
        _check_name(name)
        sandbox = await self._context.get(sandbox_id)
        ability = _ability(self._context.runtimes.named(sandbox.runtime))
        _require_running(sandbox)
        now = self._context.now()
        accepted = SnapshotStatus(SnapshotState.CREATING, SnapshotReason.ACCEPTED, "", now)
        spec = replace(sandbox.spec, env={})  # which may be secret, and which no restore takes over
        here = self._context.store.here
        snapshot = Snapshot(
            str(uuid.uuid4()), sandbox_id, spec, sandbox.runtime, accepted, now, name, sandbox.owner, here
        )
        await self._rows.insert(snapshot)
        return snapshot, ability

    async def get(self, snapshot_id: str) -> Snapshot:
        """The snapshot, or NotFound."""
        found = await self._rows.get(snapshot_id)
        if found is None:
            raise not_found(snapshot_id)
        return found

    async def list(self, query: SnapshotQuery) -> Page[Snapshot]:
        """One page, newest first."""
        return await self._rows.list(query)

    async def delete(self, snapshot_id: str) -> None:
        """Remove every trace; returns when done. Conflict while it is being made.

        Sandboxes made from it keep what they need. The removal goes on when the caller goes away,
        and is tried again later when it fails.
        """
        if snapshot_id not in self._deleting:
            await self._intend_delete(snapshot_id)
        await asyncio.shield(self._begin_delete(snapshot_id))

    async def diff(self, old: Snapshot, new: Snapshot) -> Sequence[Change]:
        """The files that differ, by path. Unsupported where the runtime cannot compare them."""
        if old.runtime != new.runtime:
            raise Conflict(
                f"{old.id} is of the runtime {old.runtime!r} and {new.id} of {new.runtime!r}",
                code=Code.SNAPSHOT_INVALID_STATE,
            )
        for each in (old, new):
            require_ready(each)
        ability = _ability(self._context.runtimes.named(old.runtime))
        if not isinstance(ability, Compares):
            raise Unsupported(
                f"the runtime {old.runtime!r} cannot compare snapshots",
                code=Code.NOT_SUPPORTED,
                hint="create a sandbox from each, and compare their files",
            )
        return await ability.diff(old.id, new.id)

    async def recover(self) -> None:
        """After a restart: what was being made has failed, what was being deleted goes, strays go."""
        rows = await self._rows.all()
        for snapshot in rows:
            if snapshot.status.state is SnapshotState.CREATING:
                message = "the server ended while the snapshot was being made"
                await self._fail(snapshot.id, SnapshotReason.INTERRUPTED, message)
            elif snapshot.status.state is SnapshotState.DELETING:
                self._begin_delete(snapshot.id)
        ready = {row.id: row for row in rows if row.status.state is SnapshotState.READY}
        kept = ready.keys() | {row.id for row in rows if row.status.state is SnapshotState.DELETING}
        for runtime in self._context.runtimes.opened.values():
            if runtime.snapshots is not None:
                await self._compare(runtime, runtime.snapshots, ready, kept)

    def retry(self) -> None:
        """Begin again the removals that failed a while ago."""
        now = asyncio.get_running_loop().time()
        for snapshot_id in [key for key, when in self._owed.items() if when <= now]:
            self._begin_delete(snapshot_id)

    async def make(self, snapshot: Snapshot) -> None:
        """Take a snapshot that is recorded as Creating; it is Ready or Failed when this returns."""
        await self._make(snapshot, _ability(self._context.runtimes.named(snapshot.runtime)))

    async def give_up(self, snapshot_id: str, reason: str, message: str) -> None:
        """Something before `make` failed."""
        await self._fail(snapshot_id, reason, message)

    async def _make(self, snapshot: Snapshot, ability: Ability) -> None:
        try:
            await self._taken(snapshot, ability)
        except Exception as error:  # whatever failed, the row must not stay halfway
            known = isinstance(error, CasuloError)
            _log.warning(
                "snapshot.failed", snapshot=snapshot.id, error=str(error), exc_info=None if known else error
            )
            late = isinstance(error, TimedOut)
            reason = SnapshotReason.TIMED_OUT if late else SnapshotReason.FAILED
            await self._fail(snapshot.id, reason, str(error) or type(error).__name__)
        else:
            now = self._context.now()
            state, reason = SnapshotState.READY, SnapshotReason.READY
            await self._rows.update(snapshot.id, lambda found: moved(found, state, reason, now))
            _log.info("snapshot.ready", snapshot=snapshot.id, sandbox=snapshot.sandbox_id)

    async def _taken(self, snapshot: Snapshot, ability: Ability) -> None:
        limit = self._context.settings.snapshot.take_timeout_seconds
        async with self._context.locks.hold(snapshot.sandbox_id):
            source = await self._context.get(snapshot.sandbox_id)
            handle = _still_there(source)
            try:
                async with asyncio.timeout(limit) as timer:
                    await self._vaults.keep(snapshot.id, source)
                    await ability.take(snapshot.id, source.id, source.spec, handle)
            except TimeoutError as error:
                if not timer.expired():
                    raise
                raise TimedOut(
                    f"the snapshot was not done within {limit:g} s",
                    hint="raise [snapshot] take_timeout_seconds if this machine needs longer",
                ) from error

    async def _fail(self, snapshot_id: str, reason: str, message: str) -> None:
        now, state = self._context.now(), SnapshotState.FAILED
        await self._rows.update(snapshot_id, lambda found: moved(found, state, reason, now, message))

    async def _intend_delete(self, snapshot_id: str) -> None:
        now = self._context.now()
        if await self._rows.update(snapshot_id, lambda found: _deleting(found, now)) is None:
            raise not_found(snapshot_id)

    def _begin_delete(self, snapshot_id: str) -> asyncio.Task[None]:
        if snapshot_id not in self._deleting:
            task = self._context.tasks.spawn(self._delete(snapshot_id), f"remove snapshot {snapshot_id}")
            self._deleting[snapshot_id] = task
            task.add_done_callback(lambda _: self._deleting.pop(snapshot_id))
        return self._deleting[snapshot_id]

    async def _delete(self, snapshot_id: str) -> None:
        try:
            snapshot = await self.get(snapshot_id)
            await self._remove(_ability(self._context.runtimes.named(snapshot.runtime)), snapshot_id)
            await self._rows.remove(snapshot_id)
        except NotFound:
            self._owed.pop(snapshot_id, None)
            raise
        except Exception as error:  # whatever it was, the snapshot must not be forgotten
            self._owed[snapshot_id] = asyncio.get_running_loop().time() + _RETRY_SECONDS
            _log.warning("snapshot.remove_failed", snapshot=snapshot_id, error=str(error))
            raise _undeleted(snapshot_id, error) from error
        self._owed.pop(snapshot_id, None)
        _log.info("snapshot.removed", snapshot=snapshot_id)

    async def _remove(self, ability: Ability, snapshot_id: str) -> None:
        """One at a time: what a restart removes as a stranger, a caller may delete at the same moment."""
        async with self._context.locks.hold(f"snapshot {snapshot_id}"):
            await ability.remove(snapshot_id)

    async def _compare(
        self, runtime: Runtime, ability: Ability, ready: dict[str, Snapshot], kept: set[str]
    ) -> None:
        """Remove traces that no row speaks for; say so where a row speaks for nothing."""
        try:
            traces = await ability.list()
        except Exception:  # a runtime that cannot look must not keep the others from their work
            _log.exception("snapshot.list_failed", runtime=runtime.name)
            return
        for snapshot_id in traces - kept:
            _log.warning("snapshot.stranger", snapshot=snapshot_id, runtime=runtime.name)
            name = f"remove stranger {snapshot_id}"
            self._context.tasks.spawn(self._remove(ability, snapshot_id), name)
        for snapshot_id in ready.keys() - traces:
            if ready[snapshot_id].runtime == runtime.name:
                await self._fail(snapshot_id, SnapshotReason.LOST, "its files are gone from this machine")


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequest(
            f"name: a snapshot's name has at most {MAX_NAME_LENGTH} printable characters",
            code=Code.INVALID_PARAMETER,
            hint="choose a shorter one, or none",
        )


def _ability(runtime: Runtime) -> Ability:
    if runtime.snapshots is not None:
        return runtime.snapshots
    raise Unsupported(
        f"the runtime {runtime.name!r} cannot take snapshots on this host",
        code=Code.SNAPSHOT_UNSUPPORTED_RUNTIME,
        hint=runtime.capabilities.missing.get("snapshot", "`osb doctor` says what this host lacks for it"),
    )


def _require_running(sandbox: Sandbox) -> None:
    if sandbox.status.state is not State.RUNNING:
        raise Conflict(
            f"sandbox {sandbox.id} is {sandbox.status.state}; a snapshot needs it to be Running",
            code=Code.SNAPSHOT_INVALID_SOURCE_STATE,
            hint="resume it first, or wait until it runs",
        )


def _still_there(source: Sandbox) -> Handle:
    """Whose stop waits for our lock is still whole; anything else happened before our turn."""
    if source.status.state not in (State.RUNNING, State.STOPPING) or source.handle is None:
        raise Conflict(
            f"sandbox {source.id} became {source.status.state} before the snapshot's turn came",
            code=Code.SNAPSHOT_INVALID_SOURCE_STATE,
        )
    return source.handle


def _deleting(snapshot: Snapshot, now: datetime) -> Snapshot:
    if snapshot.status.state is SnapshotState.DELETING:
        return snapshot
    return moved(snapshot, SnapshotState.DELETING, SnapshotReason.DELETE_REQUESTED, now)


def _undeleted(snapshot_id: str, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(
        f"snapshot {snapshot_id} could not be removed: {str(error) or type(error).__name__}",
        code=Code.SNAPSHOT_DELETE_FAILED,
        hint="the server tries again by itself; its log says more",
    )
