# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb store`: where a server keeps its rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from casulo.cli.arguments import Output
from casulo.cli.state import State
from casulo.model.errors import Code, InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Where a server keeps what it knows.")


@app.callback()
def store() -> None:
    """Where a server keeps what it knows."""


@app.command()
def migrate(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The server's config file, with [store] url.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to be moved.")] = False,
    output: Output = None,
) -> None:
    """Move a stopped server's SQLite store to the PostgreSQL of [store] url. Sandboxes go on meanwhile."""
    from casulo.api import instance
    from casulo.settings import Settings
    from casulo.store import moving

    state = State.of(ctx)
    settings = Settings.load(config or state.config_file, os.environ)
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
    rows = ", ".join(f"{number} {name}" for name, number in found.items()) or "nothing"
    told = f"{home.database}: {rows} {'to be moved' if dry_run else 'moved'}"
    state.printer().done(told, file=str(home.database), moved=found, dry_run=dry_run)
