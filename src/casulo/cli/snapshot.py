# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb snapshot`: the files of sandboxes, kept for sandboxes to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Output, SandboxId, duration
from casulo.cli.printer import plain
from casulo.cli.progress import waiting
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from casulo.client import Snapshot
    from casulo.client.snapshots import Change

app = typer.Typer(help="Keep the files of sandboxes for new ones.", no_args_is_help=True)
COLUMNS = ["id", "name", "status", "sandbox_id", "created_at"]
SnapshotId = Annotated[str, typer.Argument(help="Id of the snapshot.", show_default=False)]


@app.command()
def create(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A name to find it by.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is ready.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "-t", "--timeout", parser=duration, metavar="DURATION", show_default="10m", help="Longest wait."
        ),
    ] = 600.0,
    output: Output = None,
) -> None:
    """Keep the files of a running sandbox and print the snapshot's id."""
    state = State.of(ctx)

    async def main() -> Snapshot:
        async with state.client() as client, waiting("taking the snapshot"):
            return await client.snapshots.create(sandbox_id, name, wait=not no_wait, timeout=timeout)

    snapshot = run(main())
    printer = state.printer()
    if printer.json:
        printer.record(described(snapshot))
    else:
        print(snapshot.id)


@app.command("ls")
@app.command("list", hidden=True)
def ls(
    ctx: typer.Context,
    sandbox: Annotated[str | None, typer.Option("--sandbox", help="Only of this sandbox.")] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="Only with exactly this name.")] = None,
    state_filter: Annotated[
        list[str] | None, typer.Option("-s", "--state", help="Only in this state; repeat it.")
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Page number.")] = 1,
    page_size: Annotated[int, typer.Option(min=1, max=200, help="Snapshots per page.")] = 20,
    output: Output = None,
) -> None:
    """List snapshots, newest first."""
    state = State.of(ctx)

    async def main() -> dict[str, Any]:
        async with state.client() as client:
            found = await client.snapshots.list(
                sandbox_id=sandbox, name=name, states=state_filter or (), page=page, page_size=page_size
            )
        paging = plain(found)
        del paging["items"]
        return {"items": [described(snapshot) for snapshot in found], "pagination": paging}

    listing = run(main())
    printer = state.printer()
    if not printer.json:
        for item in listing["items"]:
            item["status"] = item["status"]["state"]
    printer.page(listing, COLUMNS)


@app.command()
def get(ctx: typer.Context, snapshot_id: SnapshotId, output: Output = None) -> None:
    """Show one snapshot."""
    state = State.of(ctx)

    async def main() -> Snapshot:
        async with state.client() as client:
            return await client.snapshots.get(snapshot_id)

    state.printer().record(described(run(main())))


@app.command()
def diff(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(help="Id of a snapshot.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Id of another one.", show_default=False)],
    output: Output = None,
) -> None:
    """Show which files differ from one snapshot to another."""
    state = State.of(ctx)

    async def main() -> Sequence[Change]:
        async with state.client() as client, waiting("comparing"):
            return await client.snapshots.diff(old, new)

    state.printer().rows([plain(change) for change in run(main())], ["kind", "path"])


@app.command("rm")
@app.command("delete", hidden=True)
def rm(
    ctx: typer.Context,
    snapshot_ids: Annotated[list[str], typer.Argument(help="Ids of snapshots.", show_default=False)],
    output: Output = None,
) -> None:
    """Remove snapshots; sandboxes that were made from them go on."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.client() as client, waiting("removing"):
            for snapshot_id in snapshot_ids:
                await client.snapshots.delete(snapshot_id)

    run(main())
    rows = [{"snapshot_id": snapshot_id, "status": "deleted"} for snapshot_id in snapshot_ids]
    state.printer().rows(rows, ["snapshot_id", "status"])


def described(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as scripts read it."""
    data: dict[str, Any] = plain(snapshot)
    status = {name: data.pop(name) for name in ("state", "reason", "message")}
    return {"id": data.pop("id"), "status": status, **data}
