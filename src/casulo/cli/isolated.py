# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb isolated`: sessions with their own processes and their own view of the sandbox's files."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Env, Limit, Output, SandboxId, Words, duration, pairs, shell_text
from casulo.cli.follow import code_of, describe_end
from casulo.cli.session import SessionId
from casulo.cli.state import State
from casulo.cli.state import run as run_async

if TYPE_CHECKING:
    from casulo.client.isolated import BindMount, Overlay

KILLED = 137
app = typer.Typer(
    help="Isolated sessions, in sandboxes created with --extension bootstrap.execd.isolation=enable.",
    no_args_is_help=True,
)
RunId = Annotated[str, typer.Argument(help="Id of the background run.", show_default=False)]


class Profile(StrEnum):
    """What a session gets when nothing else is said."""

    STRICT = "strict"
    BALANCED = "balanced"


@app.command()
def capabilities(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Show whether a sandbox can have isolated sessions, and what holds them."""
    state = State.of(ctx)

    async def main() -> object:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.capabilities()

    state.printer().record(run_async(main()))


@app.command()
def create(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    overlays: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH[:rw|ro|overlay|memory]...", help="Directories of the session.", show_default=False
        ),
    ],
    profile: Annotated[Profile, typer.Option(help="What is private and what is shared.")] = Profile.STRICT,
    bind: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE[:DEST[:ro]]", help="Show a path somewhere else.")
    ] = None,
    writable: Annotated[list[str] | None, typer.Option(help="Another directory to write to.")] = None,
    network: Annotated[bool, typer.Option(help="Share the sandbox's network.")] = True,
    uid: Annotated[int | None, typer.Option(help="User to run as.")] = None,
    gid: Annotated[int | None, typer.Option(help="Group to run as.")] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Delete it when unused this long."),
    ] = None,
    output: Output = None,
) -> None:
    """Open a session and print its id.

    Changes below a path stay in the session (overlay, the default; memory keeps them off the disk), are made
    to the path itself (rw), or are not possible (ro). Everything else is read-only.
    """
    state = State.of(ctx)

    async def main() -> str:
        async with state.sandbox(sandbox_id) as sandbox:
            made = await sandbox.isolated.create(
                overlays=[_overlay(text) for text in overlays],
                profile=profile.value,
                binds=[_bind(text) for text in bind or ()],
                extra_writable=writable or (),
                share_net=network,
                uid=uid,
                gid=gid,
                idle_timeout=None if idle_timeout is None else round(idle_timeout),
            )
            return made.id

    session_id = run_async(main())
    state.printer().done(session_id, sandbox_id=sandbox_id, session_id=session_id)


def _overlay(text: str) -> Overlay:
    from casulo.client.isolated import Overlay

    path, _, mode = text.partition(":")
    kinds = {
        "": Overlay(path),
        "rw": Overlay(path, "rw"),
        "ro": Overlay(path, "ro"),
        "overlay": Overlay(path, "overlay"),
        "memory": Overlay(path, "overlay", persist=False),
    }
    if mode not in kinds:
        raise typer.BadParameter(f"{mode!r} is none of rw, ro, overlay and memory")
    return kinds[mode]


def _bind(text: str) -> BindMount:
    from casulo.client.isolated import BindMount

    source, *rest = text.split(":")
    if len(rest) > 2 or rest[1:] not in ([], ["ro"]):
        raise typer.BadParameter(f"{text!r} is not SOURCE[:DEST[:ro]]", param_hint="--bind")
    return BindMount(source, rest[0] if rest and rest[0] else None, readonly=bool(rest[1:]))


@app.command("list")
def list_(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """List the isolated sessions of a sandbox."""
    state = State.of(ctx)

    async def main() -> Any:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.list()

    columns = ("id", "status", "created_at", "last_run_at", "idle_remaining_seconds")
    state.printer().rows(run_async(main()), columns)


@app.command()
def get(ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, output: Output = None) -> None:
    """Show a session's state and settings."""
    state = State.of(ctx)

    async def main() -> object:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.attach(session_id).info()

    state.printer().record(run_async(main()))


@app.command()
def run(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    session_id: SessionId,
    words: Words,
    env: Env = None,
    timeout: Limit = None,
    background: Annotated[bool, typer.Option("--background", help="Print the run's id and leave.")] = False,
    output: Output = None,
) -> None:
    """Run a command in a session; its exit code is ours."""
    state = State.of(ctx)
    variables = pairs(env, "--env")

    async def main() -> int:
        async with state.sandbox(sandbox_id) as sandbox:
            session = sandbox.isolated.attach(session_id)
            if background:
                started = await session.start(shell_text(words), env=variables, timeout=timeout)
                state.printer().done(started.id, session_id=session_id, run_id=started.id)
                return 0
            result = await session.run(shell_text(words), env=variables, timeout=timeout, on_stdout=_print)
        describe_end(result)
        killed = result.exit_code is None and result.reason in ("signal", "oom", "interrupted")
        return KILLED if killed else code_of(result)

    raise typer.Exit(run_async(main()))


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@app.command()
def status(
    ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, run_id: RunId, output: Output = None
) -> None:
    """Show how a background run stands."""
    state = State.of(ctx)

    async def main() -> object:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.attach(session_id).status(run_id)

    state.printer().record(run_async(main()))


@app.command()
def logs(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    session_id: SessionId,
    run_id: RunId,
    cursor: Annotated[int, typer.Option(min=0, help="Byte to begin at.")] = 0,
) -> None:
    """Print what a background run has printed."""
    state = State.of(ctx)

    async def main() -> None:
        position = cursor
        async with state.sandbox(sandbox_id) as sandbox:
            session = sandbox.isolated.attach(session_id)
            while (piece := await session.logs(run_id, position)).data:
                sys.stdout.buffer.write(piece.data)
                position = piece.cursor
        sys.stdout.flush()

    run_async(main())


@app.command()
def diff(ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, output: Output = None) -> None:
    """List what a session's overlays differ in from the sandbox."""
    state = State.of(ctx)

    async def main() -> Any:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.attach(session_id).diff()

    state.printer().rows(run_async(main()), ("kind", "type", "size", "path"))


@app.command()
def commit(ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, output: Output = None) -> None:
    """Make a session's changes true in the sandbox, and list them."""
    state = State.of(ctx)

    async def main() -> Any:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.isolated.attach(session_id).commit()

    state.printer().rows(run_async(main()), ("kind", "type", "size", "path"))


@app.command()
def delete(ctx: typer.Context, sandbox_id: SandboxId, session_id: SessionId, output: Output = None) -> None:
    """Delete a session, what runs in it, and what it did not commit."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.isolated.attach(session_id).delete()

    run_async(main())
    state.printer().done(f"deleted {session_id}", session_id=session_id, status="deleted")
