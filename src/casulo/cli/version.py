# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb version`: which versions meet here."""

from __future__ import annotations

from typing import Annotated

import typer

from casulo import __version__
from casulo.cli.arguments import Output
from casulo.cli.state import State, run


def version(
    ctx: typer.Context,
    sandbox_id: Annotated[
        str | None, typer.Argument(help="Also ask the daemon of this sandbox.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """Show the versions of this client, of the daemon it carries, and of the server it talks to."""
    state = State.of(ctx)
    found = {"client": __version__, "daemon": carried_daemon(), **run(_server(state, sandbox_id))}
    state.printer().record(found)


def carried_daemon() -> str:
    """The version of the daemon that this installation starts in sandboxes."""
    import subprocess

    from casulo.images.daemon import execd_binary, host_architecture
    from casulo.model.errors import CasuloError

    try:
        binary = execd_binary(host_architecture())
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=True)
    except (CasuloError, OSError, subprocess.SubprocessError):
        return "none in this installation"
    return answer.stdout.strip()


async def _server(state: State, sandbox_id: str | None) -> dict[str, str]:
    from casulo.client import AsyncClient, AsyncSandbox, Unreachable

    connection = state.connection()
    async with AsyncClient(connection, retry_pauses=()) as client:
        try:
            found = {"server": await client.version(), "server_url": connection.url}
        except Unreachable:
            return {"server": f"none at {connection.url}"}
        if sandbox_id is not None:
            async with await AsyncSandbox.connect(sandbox_id, client=client) as sandbox:
                found["sandbox_daemon"] = await sandbox.daemon_version()
        return found
