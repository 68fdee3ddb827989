# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb vault`: credentials for a sandbox's requests. Values come from standard input or a variable, since
arguments can be read by every program of the machine."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Output, SandboxId
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client.vault import AsyncVault

app = typer.Typer(help="Give a sandbox's requests credentials that it never sees.", no_args_is_help=True)
Names = Annotated[list[str], typer.Argument(help="Their names.")]
Revision = Annotated[int | None, typer.Option("--expected-revision", help="Only if it is at this revision.")]


@app.command()
def create(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    file: Annotated[
        Path | None, typer.Argument(help="credentials and bindings as JSON; - is standard input.")
    ] = None,
    output: Output = None,
) -> None:
    """Make the vault, empty or as a file says."""
    body = {} if file is None else _object(file)
    _show(ctx, sandbox_id, lambda vault: vault.create(body.get("credentials", ()), body.get("bindings", ())))


@app.command()
def get(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Show what it holds, without the values."""
    _show(ctx, sandbox_id, lambda vault: vault.get())


@app.command()
def patch(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    file: Annotated[Path, typer.Argument(help="The change as JSON; - is standard input.")],
    expected_revision: Revision = None,
    output: Output = None,
) -> None:
    """Delete, replace and add in one step."""
    body = _object(file)
    expected = body.get("expectedRevision") if expected_revision is None else expected_revision

    def change(vault: AsyncVault) -> Awaitable[dict[str, Any]]:
        return vault.patch(
            credentials=body.get("credentials"), bindings=body.get("bindings"), expected_revision=expected
        )

    _show(ctx, sandbox_id, change)


@app.command("set")
def set_(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    name: Annotated[str, typer.Argument(help="The credential's name.")],
    from_env: Annotated[
        str | None, typer.Option("--from-env", help="Take the value from this variable of yours.")
    ] = None,
    server_env: Annotated[
        str | None, typer.Option("--server-env", help="Name a variable of the server.")
    ] = None,
    server_file: Annotated[
        str | None, typer.Option("--server-file", help="Name a file of the server; it follows its changes.")
    ] = None,
    server_command: Annotated[
        list[str] | None,
        typer.Option("--server-command", help="Name a command of the server; repeat it for each word."),
    ] = None,
    output: Output = None,
) -> None:
    """Add or replace a credential; without an option its value is read from standard input."""
    elsewhere = [each for each in (server_env, server_file, server_command) if each]
    if len(elsewhere) + (from_env is not None) > 1:
        raise typer.BadParameter("give one source")
    value = None if elsewhere else _value(from_env)

    def change(vault: AsyncVault) -> Awaitable[dict[str, Any]]:
        return vault.set(name, value, env=server_env, file=server_file, command=server_command or None)

    _show(ctx, sandbox_id, change)


@app.command()
def bind(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    name: Annotated[str, typer.Argument(help="The binding's name.")],
    host: Annotated[list[str], typer.Option("--host", help="api.example.com or '*.example.com'; repeat it.")],
    credential: Annotated[str | None, typer.Option("--credential", help="Which one to inject.")] = None,
    auth: Annotated[
        str,
        typer.Option("--auth", help="bearer, basic, apiKey (with --header) or passthrough."),
    ] = "bearer",
    header: Annotated[str | None, typer.Option("--header", help="The header that apiKey sets.")] = None,
    scheme: Annotated[list[str] | None, typer.Option(help="https by default, or http; repeat it.")] = None,
    method: Annotated[list[str] | None, typer.Option("-X", "--method", help="Only these; repeat it.")] = None,
    path: Annotated[list[str] | None, typer.Option(help="/exactly/this or '/below/*'; repeat it.")] = None,
    placeholder: Annotated[
        str | None, typer.Option(help="A text in requests that stands for the credential.")
    ] = None,
    within: Annotated[
        list[str] | None, typer.Option("--in", help="Where it stands: path, query, header, body; repeat it.")
    ] = None,
    redact_bodies: Annotated[
        bool, typer.Option("--redact-bodies", help="Take values out of the bodies of answers too.")
    ] = False,
    output: Output = None,
) -> None:
    """Say which requests get a credential, and how; more is possible with `patch`."""
    substitutions = []
    if placeholder is not None:
        substitutions = [{"credential": credential, "placeholder": placeholder, "in": within or ["header"]}]

    def change(vault: AsyncVault) -> Awaitable[dict[str, Any]]:
        return vault.bind(
            name,
            *host,
            credential=None if auth == "passthrough" else credential,
            auth=auth,
            header=header,
            substitutions=substitutions,
            schemes=scheme or (),
            methods=method or (),
            paths=path or (),
            redact_bodies=redact_bodies,
        )

    _show(ctx, sandbox_id, change)


@app.command()
def unbind(ctx: typer.Context, sandbox_id: SandboxId, names: Names, output: Output = None) -> None:
    """Take bindings out."""
    _show(ctx, sandbox_id, lambda vault: vault.unbind(*names))


@app.command()
def rm(ctx: typer.Context, sandbox_id: SandboxId, names: Names, output: Output = None) -> None:
    """Take credentials out that no binding uses any more."""
    _show(ctx, sandbox_id, lambda vault: vault.remove(*names))


@app.command()
def delete(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Forget the whole vault."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.vault.delete()

    run(main())


def _value(variable: str | None) -> str:
    """The value, without the line's end that `echo` and editors add."""
    if variable is not None:
        value = os.environ.get(variable, "")
        if not value:
            raise typer.BadParameter(f"the variable {variable} is not set")
        return value
    text = getpass.getpass("value: ") if sys.stdin.isatty() else sys.stdin.read()
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise typer.BadParameter("standard input is empty")
    return value


def _object(file: Path) -> dict[str, Any]:
    """What is wrong with it is said without showing any of it."""
    try:
        body = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(body, dict):
        raise typer.BadParameter(f"{file}: not a JSON object")
    return body


def _show(
    ctx: typer.Context, sandbox_id: str, call: Callable[[AsyncVault], Awaitable[dict[str, Any]]]
) -> None:
    state = State.of(ctx)

    async def main() -> dict[str, Any]:
        async with state.sandbox(sandbox_id) as sandbox:
            return await call(sandbox.vault)

    print(json.dumps(run(main()), indent=2))
