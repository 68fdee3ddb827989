# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb pool`: sandboxes that the server starts before anybody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Env, Isolation, Output, Resource, pairs
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client.pools import PoolInfo

app = typer.Typer(help="Sandboxes that are started ahead.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the pool.", show_default=False)]
Least = Annotated[int, typer.Option("--min", min=0, help="Fill up when fewer than this are ready.")]
Most = Annotated[int | None, typer.Option("--max", min=0, help="Fill up to this; `--min` by default.")]
_COLUMNS = ("name", "image", "available", "allocated", "buffer_min", "buffer_max", "trouble")


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    image: Annotated[str, typer.Option("--image", help="What the members are made of.")] = "host",
    minimum: Least = 1,
    maximum: Most = None,
    resource: Resource = None,
    env: Env = None,
    isolation: Isolation = None,
    refuse_when_empty: Annotated[
        bool, typer.Option("--refuse-when-empty", help="Do not start one for who finds the pool empty.")
    ] = False,
    output: Output = None,
) -> None:
    """Keep sandboxes ready, from now on and after every restart of the server."""
    state = State.of(ctx)
    template: dict[str, Any] = {"image": {"uri": image}, "resourceLimits": pairs(resource, "--resource")}
    template |= {"env": pairs(env, "--env")}
    if isolation:
        template["extensions"] = {"casulo.isolation": isolation}

    async def main() -> PoolInfo:
        async with state.client() as client:
            most = minimum if maximum is None else maximum
            return await client.pools.create(
                name, template, minimum=minimum, maximum=most, refuse_when_empty=refuse_when_empty
            )

    state.printer().record(run(main()))


@app.command()
def ls(ctx: typer.Context, output: Output = None) -> None:
    """List the pools: how many members are ready and in use, and what keeps them from being filled."""
    state = State.of(ctx)

    async def main() -> list[PoolInfo]:
        async with state.client() as client:
            return list(await client.pools.list())

    state.printer().rows(run(main()), _COLUMNS)


@app.command()
def get(ctx: typer.Context, name: Name, output: Output = None) -> None:
    """Show one pool."""
    state = State.of(ctx)

    async def main() -> PoolInfo:
        async with state.client() as client:
            return await client.pools.get(name)

    state.printer().record(run(main()))


@app.command()
def resize(
    ctx: typer.Context, name: Name, minimum: Least, maximum: Most = None, output: Output = None
) -> None:
    """Keep another number ready; sandboxes in use are not touched."""
    state = State.of(ctx)

    async def main() -> PoolInfo:
        async with state.client() as client:
            most = minimum if maximum is None else maximum
            return await client.pools.resize(name, minimum=minimum, maximum=most)

    state.printer().record(run(main()))


@app.command()
def rm(ctx: typer.Context, name: Name, output: Output = None) -> None:
    """Give up a pool; sandboxes in use stay."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.client() as client:
            await client.pools.delete(name)

    run(main())
    state.printer().done(f"{name} is gone", name=name)
