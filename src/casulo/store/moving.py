# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Taking the rows of a SQLite store along to a PostgreSQL database that servers share.

All of it is one transaction, and doing it again after a crash changes nothing more. What ran goes on: the
rows name their server, and the server finds the sandboxes on its machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from casulo.model.errors import Code, Conflict
from casulo.store import engine, migrations, schema

MOVED = ".moved"
_OURS = ("sandboxes", "snapshots", "api_keys", "pools")
"""Tables whose rows somebody would miss."""

_NAMED = {"api_keys": "name", "pools": "name"}
"""What may be there already under the same name and be something else."""


def left_in(path: Path) -> dict[str, int]:
    """How many rows that somebody would miss are in a SQLite file, by table; none without a file."""
    if not path.exists() or path.stat().st_size == 0:
        return {}
    rows = _rows(path)
    return {name: len(rows[name]) for name in _OURS if rows[name]}


def move(path: Path, url: str, here: str) -> dict[str, int]:
    """Copy everything to `url` as rows of the server `here`, and set the file aside. Rows by table.

    Conflict when a key or pool of the same name is there and is another one; then nothing was changed.
    """
    rows = _rows(path)
    connection = engine.connect(url)
    try:
        with engine.writing(connection):
            migrations.upgrade(connection)
        with engine.writing(connection):
            for table in schema.metadata.sorted_tables:
                _check_names(connection, table, rows[table.name])
                _copy(connection, table, rows[table.name], here)
            known = postgresql.insert(schema.servers).on_conflict_do_nothing()
            connection.execute(known, {"id": here, "url": "", "holder": "", "lease_until": 0})
    finally:
        connection.close()
        connection.engine.dispose()
    path.rename(path.with_name(path.name + MOVED))
    return {name: len(found) for name, found in rows.items() if found}


def _rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """By table. The schema is brought up to date before, and closing takes SQLite's other files away."""
    connection = engine.connect(f"sqlite:///{path}")
    try:
        with engine.writing(connection):
            migrations.upgrade(connection)
        with connection.begin():
            return {
                table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for table in schema.metadata.sorted_tables
            }
    finally:
        connection.close()
        connection.engine.dispose()


def _check_names(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    column = _NAMED.get(table.name)
    if column is None:
        return
    for row in rows:
        there = connection.execute(sa.select(table).where(table.c[column] == row[column])).mappings().first()
        if there is not None and dict(there) != dict(row):
            raise Conflict(
                f"{table.name}: {row[column]!r} is in both stores, and they are not the same",
                code=Code.STORE_LEFT_BEHIND,
                hint="remove one of the two; nothing was moved",
            )


def _copy(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], here: str) -> None:
    if rows and table is not schema.servers:
        named = [{**row, "server": here} if "server" in table.c else dict(row) for row in rows]
        connection.execute(postgresql.insert(table).on_conflict_do_nothing(), named)
