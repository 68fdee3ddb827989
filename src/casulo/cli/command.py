# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb command`: run things in a sandbox that exists."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli import session
from casulo.cli.arguments import (
    CommandId,
    Env,
    Limit,
    Output,
    SandboxId,
    Words,
    Workdir,
    pairs,
    shell_text,
)
from casulo.cli.follow import follow
from casulo.cli.piped import piped_stdin
from casulo.cli.printer import note
from casulo.cli.state import State
from casulo.cli.state import run as run_async

if TYPE_CHECKING:
    from casulo.client import CommandStatus, Logs

app = typer.Typer(help="Run commands and look after those that run.", no_args_is_help=True)
app.add_typer(session.app, name="session")


@app.command()
def run(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    words: Words,
    background: Annotated[
        bool, typer.Option("-d", "--background", help="Return at once; print the id of the command.")
    ] = False,
    workdir: Workdir = None,
    timeout: Limit = None,
    argv: Annotated[bool, typer.Option("--argv", help="Run the words as they are, without a shell.")] = False,
    env: Env = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Pass what is piped into us on to it.")] = False,
    output: Output = None,
) -> None:
    """Run a command. Put `--` before it, so that its options stay its own.

    One word is a text for the shell; several words reach the shell quoted, so that it sees the same words.
    Output and exit code are the command's own; 124 when it passed its time limit.
    """
    state = State.of(ctx)
    what = list(words) if argv else shell_text(words)
    options = {"cwd": workdir, "timeout": timeout, "env": pairs(env, "--env")}

    async def start() -> str:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.commands.start(what, **options)  # type: ignore[arg-type]

    async def watch() -> int:
        async with state.sandbox(sandbox_id) as sandbox:
            given = piped_stdin() if stdin else None
            return await follow(sandbox, what, state.printer(), {**options, "stdin": given})

    if not background:
        raise typer.Exit(run_async(watch()))
    command_id = run_async(start())
    printer = state.printer()
    printer.done(command_id, execution_id=command_id, sandbox_id=sandbox_id, mode="background")


@app.command()
def status(ctx: typer.Context, sandbox_id: SandboxId, command_id: CommandId, output: Output = None) -> None:
    """Show whether a command runs, and how it ended."""
    state = State.of(ctx)

    async def main() -> CommandStatus:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.commands.status(command_id)

    state.printer().record(run_async(main()))


@app.command()
def logs(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    command_id: CommandId,
    cursor: Annotated[int, typer.Option(min=0, help="Begin at this byte.")] = 0,
    output: Output = None,
) -> None:
    """Print what a command wrote, stdout and stderr in one; the next cursor goes to stderr."""
    state = State.of(ctx)

    async def main() -> Logs:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.commands.logs(command_id, cursor)

    found = run_async(main())
    printer = state.printer()
    if printer.json:
        printer.record({"content": found.text, "cursor": found.cursor})
        return
    sys.stdout.buffer.write(found.data)
    sys.stdout.buffer.flush()
    if sys.stderr.isatty():
        note(f"cursor {found.cursor}")


@app.command()
def interrupt(
    ctx: typer.Context, sandbox_id: SandboxId, command_id: CommandId, output: Output = None
) -> None:
    """End a command and everything it started."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.commands.interrupt(command_id)

    run_async(main())
    state.printer().done(f"interrupted {command_id}", execution_id=command_id, status="interrupted")
