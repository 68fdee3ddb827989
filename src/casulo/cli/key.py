# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb key`: API keys for others, each with its own sandboxes and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Output
from casulo.cli.printer import note, plain
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client.records import KeyInfo

app = typer.Typer(help="API keys for others; needs an admin key.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the key.", show_default=False)]
_COLUMNS = ("name", "scopes", "sandboxes", "cpu", "memory", "disk", "created_at")


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="admin|create|read", help="What it opens; create by default."),
    ] = None,
    shared_with: Annotated[
        str | None, typer.Option("--shared-with", metavar="KEY", help="See the same sandboxes as this key.")
    ] = None,
    sandboxes: Annotated[int | None, typer.Option(min=0, help="Most sandboxes at once.")] = None,
    cpu: Annotated[str | None, typer.Option(help="Most CPUs together, such as 4 or 500m.")] = None,
    memory: Annotated[str | None, typer.Option(help="Most memory together, such as 8Gi.")] = None,
    disk: Annotated[str | None, typer.Option(help="Most disk together, such as 20Gi.")] = None,
    output: Output = None,
) -> None:
    """Make a key and print its secret, which nobody can read again."""
    state = State.of(ctx)
    given = {"sandboxes": sandboxes, "cpu": cpu, "memory": memory, "disk": disk}
    limits = {name: value for name, value in given.items() if value is not None}

    async def main() -> tuple[KeyInfo, str]:
        async with state.client() as client:
            return await client.create_key(
                name, scopes=scope or ["create"], limits=limits, shared_with=shared_with
            )

    _show_secret(state, *run(main()))


@app.command()
def ls(ctx: typer.Context, output: Output = None) -> None:
    """List the keys, and what the sandboxes of each hold of its limits."""
    state = State.of(ctx)

    async def main() -> list[KeyInfo]:
        async with state.client() as client:
            return list(await client.list_keys())

    keys, printer = run(main()), state.printer()
    printer.rows(keys if printer.json else [_row(key) for key in keys], _COLUMNS)


@app.command()
def rotate(ctx: typer.Context, name: Name, output: Output = None) -> None:
    """Give a key another secret and print it; the old one is void at once."""
    state = State.of(ctx)

    async def main() -> tuple[KeyInfo, str]:
        async with state.client() as client:
            return await client.rotate_key(name)

    _show_secret(state, *run(main()))


@app.command()
def rm(ctx: typer.Context, name: Name, output: Output = None) -> None:
    """Make a key void. Its sandboxes stay until they expire or an admin deletes them."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.client() as client:
            await client.remove_key(name)

    run(main())
    state.printer().done(f"{name} is void", name=name)


def _show_secret(state: State, key: KeyInfo, secret: str) -> None:
    if not state.printer().json:
        note(f"The secret of {key.name}; it is shown this once:")
    state.printer().done(secret, key=secret, **plain(key))


def _row(key: KeyInfo) -> dict[str, Any]:
    shares = {
        name: f"{key.usage.get(name, '')}/{key.limits.get(name, '-')}"
        for name in ("sandboxes", "cpu", "memory", "disk")
    }
    return {"name": key.name, "scopes": list(key.scopes), "created_at": plain(key.created_at), **shares}
