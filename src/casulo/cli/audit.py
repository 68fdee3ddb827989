# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb audit`: the record of who asked the server for which change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from casulo.cli.arguments import Output
from casulo.cli.state import State
from casulo.model.errors import Code, NotFound

app = typer.Typer(help="The record of who asked for which change.", no_args_is_help=True)


@app.command()
def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="The log; the one in the data directory by default.", show_default=False),
    ] = None,
    output: Output = None,
) -> None:
    """Check that no record was changed, removed or put in later; ends with 1 when one was.

    Prints the hash of the last record: kept elsewhere, it also shows later whether the end was cut off.
    """
    from casulo.api import audit
    from casulo.settings import Settings

    state = State.of(ctx)
    path = file or Settings.load(state.config_file, os.environ).data_dir / audit.FILE
    if not path.exists():
        raise NotFound(f"there is no audit log at {path}", code=Code.UNKNOWN, hint="name the file")
    found = audit.verify(path)
    told = f"{path}: {found.lines} records are whole; the last one's hash is {found.last_hash}"
    if found.first > 1:
        told += f"; those before the {found.first}th are not here"
    if found.lost:
        told += f"; {found.lost} calls could not be recorded"
    if found.fault:
        told = f"{path}: {found.fault}; the {found.lines} records before it are whole"
    state.printer().done(
        told,
        file=str(path),
        records=found.lines,
        first=found.first,
        lost=found.lost,
        last_hash=found.last_hash,
        fault=found.fault or None,
    )
    raise typer.Exit(1 if found.fault else 0)
