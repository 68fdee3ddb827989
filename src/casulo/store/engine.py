# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Connections and transactions, with what SQLite needs to be told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
)
_WRITES = "casulo_writes"


def connect(url: str) -> sa.Connection:
    """The one connection of a store. A new SQLite file is readable by its owner only."""
    parsed = sa.make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database:
        os.close(os.open(parsed.database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    # One that lies idle may be cut by whatever is in between; asking first costs a round trip.
    engine = sa.create_engine(parsed, pool_pre_ping=not sqlite)
    if sqlite:
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "begin", _begin)
    return engine.connect()


@contextmanager
def writing(connection: sa.Connection) -> Iterator[None]:
    """A transaction that may write; it takes SQLite's write lock at once, so it never has to upgrade."""
    connection.info[_WRITES] = True
    try:
        with connection.begin():
            yield
    finally:
        connection.info[_WRITES] = False


def _prepare(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions by its own rules, and never around schema changes.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN IMMEDIATE" if connection.info.get(_WRITES) else "BEGIN")
