# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The fixed statements. Built once, since building one costs more than running it."""

from __future__ import annotations

import sqlalchemy as sa

from casulo.model.states import State
from casulo.store.schema import claims, labels, sandboxes, tombstones

_id: sa.BindParameter[str] = sa.bindparam("sandbox_id")
_live = sandboxes.c.state != State.STOPPING.value
_here = sandboxes.c.server == sa.bindparam("here")

READ = sa.select(sandboxes).where(sandboxes.c.id == _id)
READ_ALL = sa.select(sandboxes).where(_here).order_by(sandboxes.c.created_at, sandboxes.c.id)
COUNTS = (
    sa.select(sandboxes.c.runtime, sandboxes.c.state, sa.func.count().label("number"))
    .where(_here)
    .group_by(sandboxes.c.runtime, sandboxes.c.state)
)
INSERT = sa.insert(sandboxes)


def _replacing(*kept: str) -> sa.Update:
    """All columns but the `kept` ones, where the row still has the version that was read."""
    columns = [column.name for column in sandboxes.c if column.name not in kept]
    return (
        sa.update(sandboxes)
        .where(sandboxes.c.id == _id, sandboxes.c.version == sa.bindparam("read_version"))
        .values({name: sa.bindparam(name) for name in columns})
    )


REPLACE = _replacing("id")
REPLACE_BUT_SPEC = _replacing("id", "spec", "cpu_millis", "memory_bytes", "disk_bytes")
DELETE = sa.delete(sandboxes).where(sandboxes.c.id == _id)

DUE = (
    sa.select(sandboxes)
    .where(sandboxes.c.expires_at <= sa.bindparam("now"), _live, _here)
    .order_by(sandboxes.c.expires_at)
)
NEXT_DUE = sa.select(sa.func.min(sandboxes.c.expires_at)).where(_live, _here)

INSERT_LABELS = sa.insert(labels)
DELETE_LABELS = sa.delete(labels).where(labels.c.sandbox_id == _id)

READ_CLAIM = sa.select(claims).where(claims.c.key == sa.bindparam("claim_key"))
INSERT_CLAIM = sa.insert(claims)
RELEASE_CLAIM = sa.delete(claims).where(claims.c.sandbox_id == _id)

READ_TOMBSTONE = sa.select(tombstones).where(tombstones.c.sandbox_id == _id)
INSERT_TOMBSTONE = sa.insert(tombstones)
PURGE_TOMBSTONES = sa.delete(tombstones).where(tombstones.c.deleted_at < sa.bindparam("before"))
PURGE_CLAIMS = sa.delete(claims).where(
    claims.c.created_at < sa.bindparam("before"),
    claims.c.sandbox_id.not_in(sa.union(sa.select(sandboxes.c.id), sa.select(tombstones.c.sandbox_id))),
)
