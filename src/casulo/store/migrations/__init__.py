# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Bringing a database to the current schema, from any earlier one or from nothing."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from casulo.model.errors import Code, RuntimeFailure

HEAD = "r0006"
"""The newest revision; a test compares it with the revision files."""

_LOCK = 0x6361_73756C6F
"""Servers that start together on one database upgrade it one after the other."""


def upgrade(connection: sa.Connection) -> None:
    """Run what is missing. A database from a newer server is refused, not guessed at."""
    if connection.dialect.name == "postgresql":  # SQLite's transaction has the only write lock already
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if current(connection) == HEAD:
        return
    # Alembic is loaded only when there is work: it would double the start time of every server.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise RuntimeFailure(
            f"the database cannot be brought to this server's schema: {error}",
            code=Code.UNKNOWN,
            hint="it was probably written by a newer server; install that version again",
        ) from error


def current(connection: sa.Connection) -> str | None:
    """The database's revision, None when it is empty."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found
