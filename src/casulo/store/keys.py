# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The rows of API keys, and what the sandboxes of one owner hold together."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from casulo.model.keys import Key, Limits, Scope, Usage
from casulo.model.states import ENDED
from casulo.store import codec, engine
from casulo.store.schema import api_keys, sandboxes

_running = sandboxes.c.state.not_in([state.value for state in ENDED])
_USAGE = sa.select(
    sa.func.count(),
    sa.func.coalesce(sa.func.sum(sa.case((_running, sandboxes.c.cpu_millis), else_=0)), 0),
    sa.func.coalesce(sa.func.sum(sa.case((_running, sandboxes.c.memory_bytes), else_=0)), 0),
    sa.func.coalesce(sa.func.sum(sandboxes.c.disk_bytes), 0),
).where(sandboxes.c.owner == sa.bindparam("owner"))
_ALL = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
_DELETE = sa.delete(api_keys).where(api_keys.c.id == sa.bindparam("key_id"))


def every(connection: sa.Connection) -> tuple[Key, ...]:
    """All keys, oldest first."""
    with connection.begin():
        return tuple(_key(row) for row in connection.execute(_ALL).mappings())


def put(connection: sa.Connection, key: Key) -> bool:
    """Write a key, new or changed; False when another one has its name."""
    try:
        with engine.writing(connection):
            connection.execute(_DELETE, {"key_id": key.id})
            connection.execute(sa.insert(api_keys), _row(key))
    except sa.exc.IntegrityError:
        return False
    return True


def remove(connection: sa.Connection, key_id: str) -> None:
    """Forget a key."""
    with engine.writing(connection):
        connection.execute(_DELETE, {"key_id": key_id})


def usage(connection: sa.Connection, owner: str) -> Usage:
    """What an owner's sandboxes hold now."""
    with connection.begin():
        return held(connection, owner)


def held(connection: sa.Connection, owner: str) -> Usage:
    """As `usage`, inside a transaction. Until that one ends, no other insert counts for the same owner."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(owner))))
    return Usage(*map(int, connection.execute(_USAGE, {"owner": owner}).one()))


def _row(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "owner": key.owner,
        "scopes": sorted(key.scopes),
        "limits": codec.dump(Limits, key.limits),
        "digest": key.digest,
        "created_at": codec.to_micros(key.created_at),
        "rotated_at": None if key.rotated_at is None else codec.to_micros(key.rotated_at),
    }


def _key(row: sa.RowMapping) -> Key:
    rotated = row["rotated_at"]
    return Key(
        id=row["id"],
        name=row["name"],
        owner=row["owner"],
        scopes=frozenset(map(Scope, row["scopes"])),
        digest=row["digest"],
        created_at=codec.from_micros(row["created_at"]),
        limits=codec.load(Limits, row["limits"]) or Limits(),
        rotated_at=None if rotated is None else codec.from_micros(rotated),
    )
