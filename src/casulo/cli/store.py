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
    from casulo.api.migrate import migrate as moved
    from casulo.settings import Settings

    state = State.of(ctx)
    settings = Settings.load(config or state.config_file, os.environ)
    file, found = moved(settings, dry_run=dry_run)
    rows = ", ".join(f"{number} {name}" for name, number in found.items()) or "nothing"
    told = f"{file}: {rows} {'to be moved' if dry_run else 'moved'}"
    state.printer().done(told, file=str(file), moved=found, dry_run=dry_run)
