# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb cp`: files and whole trees, from here into a sandbox or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from casulo.cli.arguments import Output
from casulo.cli.progress import transfer, waiting
from casulo.cli.state import State, run

Place = Annotated[str, typer.Argument(help="PATH here, or SANDBOX_ID:PATH.", show_default=False)]


def copy(ctx: typer.Context, source: Place, destination: Place, output: Output = None) -> None:
    """Copy a file or directory into a sandbox or out of it; one of the places is SANDBOX_ID:PATH.

    As with `cp -r`, a destination that is an existing directory gets the copy inside it.
    """
    state = State.of(ctx)
    from_box, to_box = _remote(source), _remote(destination)
    if (from_box is None) == (to_box is None):
        raise typer.BadParameter("exactly one of the two places is in a sandbox, written SANDBOX_ID:PATH")
    if to_box is not None:
        place = run(_send(state, Path(source), *to_box))
    else:
        assert from_box is not None
        place = run(_fetch(state, *from_box, Path(destination)))
    state.printer().done(f"copied {source} to {place}", source=source, destination=place)


def _remote(text: str) -> tuple[str, str] | None:
    """Sandbox and path; None for a local path, which has no colon or begins with `.` or `/`."""
    sandbox_id, colon, path = text.partition(":")
    if not colon or text.startswith((".", "/")) or "/" in sandbox_id:
        return None
    return sandbox_id, path or "."


async def _send(state: State, source: Path, sandbox_id: str, path: str) -> str:
    from casulo.client.trees import size_of

    async with state.sandbox(sandbox_id) as sandbox:
        with transfer("copying", size_of(source)) as shown:
            return f"{sandbox_id}:{await sandbox.files.upload(source, path, on_progress=shown.add)}"


async def _fetch(state: State, sandbox_id: str, path: str, destination: Path) -> str:
    async with state.sandbox(sandbox_id) as sandbox, waiting("looking"):
        info = await sandbox.files.info(path)
    async with state.sandbox(sandbox_id) as sandbox:
        total = info.size if info.type == "file" else None
        with transfer("copying", total) as shown:
            return str(await sandbox.files.download(path, destination, on_progress=shown.add))
