# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Taking a stopped server's own store along to the one that servers share."""

from __future__ import annotations

from pathlib import Path

from casulo.api import instance
from casulo.model.errors import Code, InvalidRequest
from casulo.settings import Settings
from casulo.store import moving


def migrate(settings: Settings, *, dry_run: bool) -> tuple[Path, dict[str, int]]:
    """Move to `[store] url` what the data directory's store holds. The file, and rows by table.

    Conflict while the server runs.
    """
    if not settings.store.url:
        raise InvalidRequest(
            "[store] url is not set: there is nowhere to move to",
            code=Code.INVALID_PARAMETER,
            hint="set it in the file that --config names, or in OPENSANDBOX_STORE_POSTGRESQL_DSN",
        )
    with instance.claimed(settings.data_dir) as home:
        found = moving.left_in(home.database)
        if found and not dry_run:
            found = moving.move(home.database, settings.store.url, home.identity())
        return home.database, found
