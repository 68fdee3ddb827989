# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb command session`: commands that share variables and the working directory."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from casulo.cli.arguments import Limit, Output, SandboxId, Words, Workdir, shell_text
from casulo.cli.follow import code_of, describe_end
from casulo.cli.state import State
from casulo.cli.state import run as run_async

app = typer.Typer(help="Shell sessions: commands that share variables and directory.", no_args_is_help=True)
SessionId = Annotated[str, typer.Argument(help="Id of the session.", show_default=False)]


@app.command()
def create(ctx: typer.Context, sandbox_id: SandboxId, workdir: Workdir = None, output: Output = None) -> None:
    """Open a session and print its id."""
    state = State.of(ctx)

    async def main() -> str:
        async with state.sandbox(sandbox_id) as sandbox:
            return (await sandbox.sessions.create(workdir)).id

    session_id = run_async(main())
    state.printer().done(session_id, sandbox_id=sandbox_id, session_id=session_id, working_directory=workdir)


@app.command()
def run(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    session_id: SessionId,
    words: Words,
    workdir: Workdir = None,
    timeout: Limit = None,
) -> None:
    """Run a command in a session; its exit code is ours."""
    state = State.of(ctx)

    async def main() -> int:
        async with state.sandbox(sandbox_id) as sandbox:
            result = await sandbox.sessions.attach(session_id).run(
                shell_text(words), cwd=workdir, timeout=timeout, on_stdout=_print
            )
        describe_end(result)
        return code_of(result)

    raise typer.Exit(run_async(main()))


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@app.command()
def delete(ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, output: Output = None) -> None:
    """Close a session and end what still runs in it."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.sessions.attach(session_id).delete()

    run_async(main())
    state.printer().done(f"deleted {session_id}", session_id=session_id, status="deleted")
