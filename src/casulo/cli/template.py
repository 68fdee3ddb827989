# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb template`: sandboxes that were warmed up once, as the beginning of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli.arguments import Output, duration, pairs
from casulo.cli.printer import plain
from casulo.cli.progress import waiting
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client import Template
    from casulo.client.templates import Pruned

app = typer.Typer(help="Warm up a sandbox once, and begin others with it.", no_args_is_help=True)
COLUMNS = ["name", "id", "state", "created_at"]
PRUNED = ["outcome", "kind", "name", "id", "reason", "bytes", "used_by"]
Name = Annotated[str, typer.Argument(help="Name of the template.", show_default=False)]


@app.command()
def build(
    ctx: typer.Context,
    name: Name,
    image: Annotated[str, typer.Option("--image", help="Image to begin with.")] = "host",
    warm: Annotated[
        list[str] | None,
        typer.Option("-w", "--warm", help="Command that warms it up, by a shell; repeat it."),
    ] = None,
    ready: Annotated[
        str | None, typer.Option("--ready", help="Command that is tried until it succeeds, before that.")
    ] = None,
    isolation: Annotated[
        str, typer.Option("--isolation", help="microvm keeps memory, others files only.")
    ] = "microvm",
    resource: Annotated[
        list[str] | None,
        typer.Option("--resource", help="Limit as NAME=QUANTITY, e.g. memory=1Gi; repeat it."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "-t", "--timeout", parser=duration, metavar="DURATION", show_default="10m", help="Longest wait."
        ),
    ] = 600.0,
    output: Output = None,
) -> None:
    """Build a template, or replace the one of this name."""
    state = State.of(ctx)
    limits = pairs(resource, "--resource")

    async def main() -> Template:
        async with state.client() as client, waiting("building the template"):
            return await client.templates.build(
                name,
                image,
                warm=warm or (),
                ready=ready,
                isolation=isolation,
                resources=limits,
                timeout=timeout,
            )

    state.printer().rows([run(main())], COLUMNS)


@app.command("ls")
@app.command("list", hidden=True)
def ls(ctx: typer.Context, output: Output = None) -> None:
    """List templates, newest first."""
    state = State.of(ctx)

    async def main() -> tuple[Template, ...]:
        async with state.client() as client:
            return await client.templates.list()

    state.printer().rows([plain(template) for template in run(main())], COLUMNS)


@app.command()
def prune(
    ctx: typer.Context,
    unused: Annotated[
        bool, typer.Option("-a", "--all", help="Also those that could be used and are not.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    output: Output = None,
) -> None:
    """Remove templates that failed or are outdated, and say what uses the others."""
    state = State.of(ctx)

    async def main() -> Pruned:
        async with state.client() as client, waiting("pruning"):
            return await client.templates.prune(unused=unused, dry_run=dry_run)

    told, going = run(main()), "would go" if dry_run else "removed"
    rows = [
        {**plain(item), "outcome": outcome}
        for outcome, items in ((going, told.removed), ("kept", told.kept))
        for item in items
    ]
    state.printer().rows(rows, PRUNED)


@app.command("rm")
@app.command("delete", hidden=True)
def rm(ctx: typer.Context, name: Name, output: Output = None) -> None:
    """Remove a template; sandboxes that were made from it go on."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.client() as client:
            await client.templates.delete(name)

    run(main())
    state.printer().rows([{"name": name, "status": "deleted"}], ["name", "status"])
