# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The store: an asynchronous face on a database that one thread talks to.

Every change is one transaction that reads the row, computes the new one with a pure function and
writes it back under the version that was read. So a change never acts on stale knowledge, whether
the other writer is a task of this server or another server on the same database.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from casulo.model.errors import Unavailable
from casulo.model.keys import Key, Limits, Usage, check_quota
from casulo.model.sandbox import Exit, Sandbox
from casulo.store import codec, engine, keys, migrations
from casulo.store import sealed as sealing
from casulo.store import statements as sql
from casulo.store.outbox import Outbox
from casulo.store.pools import PoolRows
from casulo.store.query import Claim, Page, Query, Record, Tombstone
from casulo.store.schema import labels, sandboxes
from casulo.store.sealed import SealedRows
from casulo.store.servers import ServerRows
from casulo.store.snapshots import SnapshotRows
from casulo.workers import Workers

T = TypeVar("T")
_FIRST_VERSION = 1
Change = Callable[[Sandbox], Sandbox]
"""From the stored sandbox to the wanted one; pure. Returning its argument writes nothing."""


class Store:
    """All of it; `control` is the only user. Open with `await Store.open(url)`."""

    def __init__(self, connection: sa.Connection, thread: Workers, exclusive: bool, here: str) -> None:
        self.here = here
        self._connection = connection
        self._thread = thread
        self.snapshots = SnapshotRows(self._call, here)
        self.servers = ServerRows(self._call)
        self.outbox = Outbox(self._call, here)
        self.pools = PoolRows(self._call)
        self.sealed = SealedRows(self._call, here)
        # What the only writer wrote last is what a read would find; the store's thread changes it. All of it
        # is here, so that how long an answer takes does not tell whether somebody else has the sandbox.
        self._latest = {r.sandbox.id: r for r in _records(connection, here)} if exclusive else None

    @classmethod
    async def open(cls, url: str, *, exclusive: bool = False, here: str = "") -> Self:
        """Connect, bring the schema up to date. `url` is SQLAlchemy's, e.g. sqlite:////path/file.

        `exclusive` promises that nobody else writes to it; single sandboxes are then read from memory.
        `here` is this server's name among those that share the store: what is due, or to be reconciled,
        or counted, is only what is on its own machine.
        """
        thread = Workers(1, "store")  # connections stay in the thread that opened them
        try:
            connection = await thread.run(partial(_connected, url))
            return await thread.run(partial(cls, connection, thread, exclusive, here))
        except BaseException:
            thread.close()
            raise

    async def close(self) -> None:
        """Finish what was asked before, then disconnect."""
        await self._call(_disconnect)
        self._thread.close()

    async def insert(
        self, sandbox: Sandbox, claim: Claim | None = None, limits: Limits | None = None
    ) -> Claim | None:
        """Record a new sandbox; with a claim that somebody holds already, only return theirs.

        Forbidden when its owner's sandboxes would then hold more than `limits`.
        """
        return await self._call(self._insert, sandbox, claim, limits or Limits())

    async def get(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox, None when there is none (any more)."""
        if self._latest is not None:
            known = self._latest.get(sandbox_id)
            return known.sandbox if known else None
        return await self._call(self._read, sandbox_id)

    async def update(self, sandbox_id: str, change: Change) -> Sandbox | None:
        """Apply `change` atomically; what it raises leaves unchanged rows. None when there is no row."""
        return await self._call(self._update, sandbox_id, change)

    async def remove(self, tombstone: Tombstone, *, release_claim: bool) -> None:
        """Replace the row by a tombstone; `release_claim` lets its idempotency key be used again."""
        await self._call(self._remove, tombstone, release_claim)

    async def list(self, query: Query) -> Page[Sandbox]:
        """One page, newest first; sandboxes of the same microsecond stay in the order of their ids."""
        return await self._call(_list, query)

    async def all(self) -> tuple[Sandbox, ...]:
        """Every row of this server, oldest first."""
        return await self._call(_all, self.here)

    async def counts(self) -> dict[tuple[str, str], int]:
        """How many rows there are, by runtime and state."""
        return await self._call(_counts, self.here)

    async def due(self, now: datetime) -> tuple[Sandbox, ...]:
        """Sandboxes whose time has come and which nobody is stopping yet, longest overdue first."""
        return await self._call(_due, now, self.here)

    async def next_due(self) -> datetime | None:
        """When the next sandbox ends by itself; None when none will."""
        return await self._call(_next_due, self.here)

    async def claim(self, key: str) -> Claim | None:
        """Who used an idempotency key."""
        return await self._call(_claim, key)

    async def tombstone(self, sandbox_id: str) -> Tombstone | None:
        """What is left of a sandbox that was deleted not long ago."""
        return await self._call(_tombstone, sandbox_id)

    async def keys(self) -> tuple[Key, ...]:
        """All API keys, oldest first."""
        return await self._call(keys.every)

    async def put_key(self, key: Key) -> bool:
        """Write an API key, new or changed; False when another one has its name."""
        return await self._call(keys.put, key)

    async def remove_key(self, key_id: str) -> None:
        """Forget an API key."""
        await self._call(keys.remove, key_id)

    async def usage(self, owner: str) -> Usage:
        """What the sandboxes of one owner hold."""
        return await self._call(keys.usage, owner)

    async def purge(self, before: datetime) -> None:
        """Forget tombstones older than `before`, and the idempotency keys of what they stood for."""
        await self._call(_purge, before)

    def _insert(
        self, connection: sa.Connection, sandbox: Sandbox, claim: Claim | None, limits: Limits
    ) -> Claim | None:
        holder = _insert(connection, sandbox, claim, limits)
        if holder is None:
            self._note(sandbox.id, Record(sandbox, _FIRST_VERSION))
        return holder

    def _read(self, connection: sa.Connection, sandbox_id: str) -> Sandbox | None:
        return self._note(sandbox_id, _read(connection, sandbox_id))

    def _update(self, connection: sa.Connection, sandbox_id: str, change: Change) -> Sandbox | None:
        known = self._latest.get(sandbox_id) if self._latest else None
        return self._note(sandbox_id, _update(connection, sandbox_id, change, known, self.outbox))

    def _remove(self, connection: sa.Connection, tombstone: Tombstone, release_claim: bool) -> None:
        _remove(connection, tombstone, release_claim, self.outbox)
        self._note(tombstone.sandbox_id, None)

    def _note(self, sandbox_id: str, record: Record | None) -> Sandbox | None:
        if self._latest is not None and record is None:
            self._latest.pop(sandbox_id, None)
        elif self._latest is not None and record is not None:
            self._latest[sandbox_id] = record
        return record.sandbox if record else None

    async def _call(self, work: Callable[..., T], *args: Any) -> T:
        try:
            return await self._thread.run(partial(work, self._connection, *args))
        except sa.exc.OperationalError as error:
            raise Unavailable(
                f"the store cannot do its work: {error.orig}",
                hint="look for a full or read-only disk, or another process holding the database",
                retry_after=5,
            ) from error


def _connected(url: str) -> sa.Connection:
    connection = engine.connect(url)
    try:
        with engine.writing(connection):
            migrations.upgrade(connection)
    except BaseException:
        _disconnect(connection)
        raise
    return connection


def _disconnect(connection: sa.Connection) -> None:
    connection.close()
    connection.engine.dispose()


def _read(connection: sa.Connection, sandbox_id: str) -> Record | None:
    with connection.begin():
        return _row(connection, sandbox_id)


def _row(connection: sa.Connection, sandbox_id: str) -> Record | None:
    found = connection.execute(sql.READ, {"sandbox_id": sandbox_id}).mappings().first()
    return codec.from_row(found) if found else None


def _insert(connection: sa.Connection, sandbox: Sandbox, claim: Claim | None, limits: Limits) -> Claim | None:
    try:
        with engine.writing(connection):
            if claim and (holder := _claim_row(connection, claim.key)):
                return holder
            if not limits.none:
                check_quota(limits, keys.held(connection, sandbox.owner), sandbox.spec.resources)
            connection.execute(sql.INSERT, {**codec.to_row(sandbox), "version": _FIRST_VERSION})
            _write_labels(connection, sandbox)
            if claim:
                _write_claim(connection, claim, sandbox.created_at)
    except sa.exc.IntegrityError:
        # Another server took the key between our look and our write.
        if claim and (holder := _claim(connection, claim.key)):
            return holder
        raise
    return None


def _write_claim(connection: sa.Connection, claim: Claim, created_at: datetime) -> None:
    row = {
        "key": claim.key,
        "request_hash": claim.request_hash,
        "sandbox_id": claim.sandbox_id,
        "created_at": codec.to_micros(created_at),
    }
    connection.execute(sql.INSERT_CLAIM, row)


def _write_labels(connection: sa.Connection, sandbox: Sandbox) -> None:
    rows = [{"sandbox_id": sandbox.id, "key": k, "value": v} for k, v in sandbox.metadata.items()]
    if rows:
        connection.execute(sql.INSERT_LABELS, rows)


def _update(
    connection: sa.Connection, sandbox_id: str, change: Change, known: Record | None, told: Outbox
) -> Record | None:
    """The record after the change. What is `known` is not read: its version tells whether it is true."""
    while True:
        with engine.writing(connection):
            record = known or _row(connection, sandbox_id)
            if record is None:
                return None
            changed = change(record.sandbox)
            if changed is record.sandbox:
                return record
            if not _replace(connection, record, changed):
                known = None
                continue
            owed = told.note(connection, record.sandbox, changed)
        if owed:
            told.committed()
        return Record(changed, record.version + 1)


def _replace(connection: sa.Connection, record: Record, changed: Sandbox) -> bool:
    """Whether the row still had the version that was read."""
    same = changed.spec is record.sandbox.spec
    values = codec.to_changing_row(changed) if same else codec.to_row(changed)
    del values["id"]
    values |= {"sandbox_id": changed.id, "read_version": record.version, "version": record.version + 1}
    if connection.execute(sql.REPLACE_BUT_SPEC if same else sql.REPLACE, values).rowcount != 1:
        return False
    if changed.metadata != record.sandbox.metadata:
        connection.execute(sql.DELETE_LABELS, {"sandbox_id": changed.id})
        _write_labels(connection, changed)
    return True


def _remove(connection: sa.Connection, tombstone: Tombstone, release_claim: bool, told: Outbox) -> None:
    sandbox_id = tombstone.sandbox_id
    row = {
        "sandbox_id": sandbox_id,
        "deleted_at": codec.to_micros(tombstone.deleted_at),
        "reason": tombstone.reason,
        "exit": codec.dump(Exit, tombstone.exit),
    }
    with engine.writing(connection):
        record = _row(connection, sandbox_id) if told.wanted else None
        gone = connection.execute(sql.DELETE, {"sandbox_id": sandbox_id}).rowcount
        if gone:
            connection.execute(sql.INSERT_TOMBSTONE, row)
        owed = gone and record and told.note(connection, record.sandbox, tombstone)
        sealing.forget(connection, sandbox_id)
        if release_claim:
            connection.execute(sql.RELEASE_CLAIM, {"sandbox_id": sandbox_id})
    if owed:
        told.committed()


def _list(connection: sa.Connection, query: Query) -> Page[Sandbox]:
    wanted = sa.and_(sa.true(), *_conditions(query))
    rows = (
        sa.select(sandboxes)
        .where(wanted)
        .order_by(sandboxes.c.created_at.desc(), sandboxes.c.id.desc())
        .limit(query.page_size)
        .offset((query.page - 1) * query.page_size)
    )
    with connection.begin():
        total = connection.scalar(sa.select(sa.func.count()).select_from(sandboxes).where(wanted)) or 0
        items = tuple(codec.from_row(row).sandbox for row in connection.execute(rows).mappings())
    return Page(items, total, query.page, query.page_size)


def _conditions(query: Query) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if query.owner is not None:
        found.append(sandboxes.c.owner == query.owner)
    if query.states:
        found.append(sandboxes.c.state.in_(sorted(state.value for state in query.states)))
    for key, value in query.metadata.items():
        pair = (labels.c.key == key) & (labels.c.value == value)
        found.append(sandboxes.c.id.in_(sa.select(labels.c.sandbox_id).where(pair)))
    return found


def _all(connection: sa.Connection, here: str) -> tuple[Sandbox, ...]:
    return tuple(record.sandbox for record in _records(connection, here))


def _records(connection: sa.Connection, here: str) -> tuple[Record, ...]:
    with connection.begin():
        return tuple(map(codec.from_row, connection.execute(sql.READ_ALL, {"here": here}).mappings()))


def _counts(connection: sa.Connection, here: str) -> dict[tuple[str, str], int]:
    with connection.begin():
        found = connection.execute(sql.COUNTS, {"here": here})
        return {(row.runtime, row.state): row.number for row in found}


def _due(connection: sa.Connection, now: datetime, here: str) -> tuple[Sandbox, ...]:
    with connection.begin():
        rows = connection.execute(sql.DUE, {"now": codec.to_micros(now), "here": here}).mappings()
        return tuple(codec.from_row(row).sandbox for row in rows)


def _next_due(connection: sa.Connection, here: str) -> datetime | None:
    with connection.begin():
        first = connection.scalar(sql.NEXT_DUE, {"here": here})
    return None if first is None else codec.from_micros(first)


def _claim(connection: sa.Connection, key: str) -> Claim | None:
    with connection.begin():
        return _claim_row(connection, key)


def _claim_row(connection: sa.Connection, key: str) -> Claim | None:
    row = connection.execute(sql.READ_CLAIM, {"claim_key": key}).first()
    return Claim(row.key, row.request_hash, row.sandbox_id) if row else None


def _tombstone(connection: sa.Connection, sandbox_id: str) -> Tombstone | None:
    with connection.begin():
        row = connection.execute(sql.READ_TOMBSTONE, {"sandbox_id": sandbox_id}).first()
    if row is None:
        return None
    moment = codec.from_micros(row.deleted_at)
    return Tombstone(row.sandbox_id, moment, row.reason, codec.load(Exit, row.exit))


def _purge(connection: sa.Connection, before: datetime) -> None:
    limit = {"before": codec.to_micros(before)}
    with engine.writing(connection):
        connection.execute(sql.PURGE_TOMBSTONES, limit)
        connection.execute(sql.PURGE_CLAIMS, limit)
