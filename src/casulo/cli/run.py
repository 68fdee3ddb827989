# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb run`: one command in a sandbox of its own, with or without a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import (
    Env,
    Isolation,
    Limit,
    Output,
    Resource,
    Runtime,
    Volume,
    Words,
    Workdir,
    pairs,
    volumes,
)
from casulo.cli.follow import follow
from casulo.cli.piped import piped_stdin
from casulo.cli.printer import Printer, note
from casulo.cli.progress import waiting
from casulo.cli.state import State, run
from casulo.model.sandbox import DEFAULT_ENTRYPOINT

if TYPE_CHECKING:
    from casulo.client import AsyncSandbox, Connection

LIFETIME_SECONDS = 600.0
"""The sandbox's own end, pushed on while we live: nothing stays when this process is killed."""

RENEW_SECONDS = 180.0
PROBE_SECONDS = 2.0


def run_command(
    ctx: typer.Context,
    words: Words,
    image: Annotated[str, typer.Option("-i", "--image", help="Image to run in.")] = "host",
    env: Env = None,
    workdir: Workdir = None,
    timeout: Limit = None,
    resource: Resource = None,
    isolation: Isolation = None,
    volume: Volume = None,
    runtime: Runtime = None,
    entrypoint: Annotated[
        list[str] | None,
        typer.Option(
            "--entrypoint",
            help="What the sandbox runs beside it; again for each argument. It waits by default.",
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Run a command in a new sandbox and remove the sandbox afterwards.

    The words after `--` are run as they are, without a shell. Output and exit code are the command's own, and
    what is piped into us is its input.
    When no server is configured or running, a private one is started for this command.
    """
    state = State.of(ctx)
    spec = {
        "image": image,
        "entrypoint": entrypoint or DEFAULT_ENTRYPOINT,  # many an image's own ends at once
        "resources": pairs(resource, "--resource"),
        "isolation": isolation,
        "runtime": runtime,
        "volumes": volumes(volume),
    }
    options = {"cwd": workdir, "timeout": timeout, "env": pairs(env, "--env")}
    raise typer.Exit(run(_run(state, spec, list(words), state.printer(), options)))


async def _run(
    state: State, spec: dict[str, Any], words: list[str], printer: Printer, options: dict[str, Any]
) -> int:
    async with own_sandbox(state, spec) as sandbox:
        return await follow(sandbox, words, printer, {**options, "stdin": piped_stdin()})


@asynccontextmanager
async def own_sandbox(state: State, spec: dict[str, Any]) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that lives as long as this command."""
    from casulo.client import AsyncSandbox

    async with _server(state) as connection:
        async with waiting("creating the sandbox"):
            sandbox = await AsyncSandbox.create(**spec, timeout=LIFETIME_SECONDS, connection=connection)
        async with sandbox, _renewed(sandbox):
            yield sandbox


@asynccontextmanager
async def _server(state: State) -> AsyncIterator[Connection]:
    """The configured server; a private one when none is configured and none runs here."""
    from casulo.cli.private import private_server
    from casulo.client.connection import casulo_home

    connection = state.connection()
    if not connection.chosen and not await _answers(connection):
        note(f"osb: no server at {connection.url}; starting a private one for this command")
        async with private_server(casulo_home(os.environ)) as private:
            yield private
        return
    yield connection


async def _answers(connection: Connection) -> bool:
    """Whether a server like ours listens there."""
    from casulo.client import AsyncClient, CasuloError

    async with AsyncClient(connection, retry_pauses=()) as client:
        try:
            return await asyncio.wait_for(client.health(), PROBE_SECONDS)
        except (CasuloError, TimeoutError):
            return False


@asynccontextmanager
async def _renewed(sandbox: AsyncSandbox) -> AsyncIterator[None]:
    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await sandbox.renew(LIFETIME_SECONDS)

    renewing = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
