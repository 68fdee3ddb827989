# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb sandbox`: their lives, from create to kill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import (
    Env,
    Isolation,
    Output,
    Resource,
    Runtime,
    SandboxId,
    Volume,
    duration,
    lifetime,
    pairs,
    volumes,
)
from casulo.cli.printer import Printer, plain
from casulo.cli.progress import waiting
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client import Metrics, SandboxInfo

app = typer.Typer(help="Make, list, watch and end sandboxes.", no_args_is_help=True)
COLUMNS = ["id", "status", "image", "created_at", "expires_at"]
WATCH_SECONDS = 1.0

Metadata = Annotated[
    list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE", help="Metadata label.")
]
SnapshotId = Annotated[
    str | None, typer.Option("--snapshot", "--snapshot-id", help="Id of a snapshot, instead of an image.")
]
TemplateName = Annotated[
    str | None, typer.Option("--template", help="Name of a template, instead of an image.")
]
Extension = Annotated[
    list[str] | None, typer.Option("--extension", metavar="KEY=VALUE", help="Extension parameter.")
]
Ready = Annotated[
    float,
    typer.Option(
        parser=duration, metavar="DURATION", show_default="30s", help="How long it may take to be ready."
    ),
]

Entrypoint = Annotated[
    list[str] | None, typer.Option("--entrypoint", help="One word of the entrypoint; repeat it.")
]


PolicyFile = Annotated[
    Path | None, typer.Option("--network-policy-file", help="File with a network policy, JSON.")
]
CredentialProxy = Annotated[
    bool, typer.Option("--credential-proxy", help="Let it have a credential vault; needs a policy.")
]


@app.command()
def create(
    ctx: typer.Context,
    image: Annotated[str | None, typer.Option("-i", "--image", help="Image; `host` by default.")] = None,
    snapshot: SnapshotId = None,
    template: TemplateName = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="The whole request as JSON in wire form.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "-t", "--timeout", parser=lifetime, metavar="DURATION", help="How long it lives, or `none`."
        ),
    ] = None,
    env: Env = None,
    metadata: Metadata = None,
    extension: Extension = None,
    resource: Resource = None,
    entrypoint: Entrypoint = None,
    isolation: Isolation = None,
    volume: Volume = None,
    runtime: Runtime = None,
    network_policy: PolicyFile = None,
    credential_proxy: CredentialProxy = False,
    ready_timeout: Ready = 30.0,
    output: Output = None,
) -> None:
    """Create a sandbox and print its id."""
    state = State.of(ctx)
    given = {
        "entrypoint": entrypoint,
        "env": pairs(env, "--env"),
        "metadata": pairs(metadata, "--metadata"),
        "extensions": pairs(extension, "--extension"),
        "resources": pairs(resource, "--resource"),
        "isolation": isolation,
        "snapshot": snapshot,
        "template": template,
        "volumes": volumes(volume),
        "runtime": runtime,
        "network_policy": _request(network_policy) if network_policy else None,
        "credential_proxy": credential_proxy,
    }
    if file is not None:
        if image or timeout is not None or any(given.values()):
            raise typer.BadParameter("the file holds the whole request; give no other option with it")
        given = {"image": None, "timeout": None, "request": _request(file)}
    else:
        given |= _defaults(state, image, snapshot or template, timeout)
    _tell(state, run(_create(state, given, ready_timeout)))


def _tell(state: State, info: SandboxInfo) -> None:
    printer = state.printer()
    if printer.json:
        printer.record(described(info))
    else:
        print(info.id)


async def _create(state: State, given: Mapping[str, Any], ready_timeout: float) -> SandboxInfo:
    from casulo.client import AsyncSandbox

    async with state.client() as client:
        async with waiting("creating the sandbox"):
            sandbox = await AsyncSandbox.create(**given, ready_timeout=ready_timeout, client=client)
        return sandbox.info


def _request(file: Path) -> dict[str, Any]:
    try:
        request = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}") from error
    if not isinstance(request, dict):
        raise typer.BadParameter(f"{file}: not a JSON object")
    return request


def _defaults(state: State, image: str | None, snapshot: str | None, timeout: float | None) -> dict[str, Any]:
    """What the config file's [defaults] say where no option was given."""
    if image and snapshot:
        raise typer.BadParameter("give an image, a snapshot or a template, not two of them")
    defaults = state.config().get("defaults", {})
    chosen: dict[str, Any] = {}
    if snapshot is None and (uri := image or defaults.get("image")):
        chosen["image"] = uri
    if timeout is None and "timeout" in defaults:
        timeout = lifetime(str(defaults["timeout"]))
    if timeout is not None:
        chosen["timeout"] = timeout or None
    return chosen


@app.command("list")
def list_(
    ctx: typer.Context,
    state_filter: Annotated[
        list[str] | None, typer.Option("-s", "--state", help="Only in this state; repeat it.")
    ] = None,
    metadata: Metadata = None,
    page: Annotated[int, typer.Option(min=1, help="Page number.")] = 1,
    page_size: Annotated[int, typer.Option(min=1, max=200, help="Sandboxes per page.")] = 20,
    output: Output = None,
) -> None:
    """List sandboxes, newest first."""
    state = State.of(ctx)
    labels = pairs(metadata, "--metadata")

    async def main() -> dict[str, Any]:
        async with state.client() as client:
            found = await client.list(
                states=state_filter or (), metadata=labels, page=page, page_size=page_size
            )
        paging = plain(found)
        del paging["items"]
        return {"items": [described(info) for info in found], "pagination": paging}

    listing = run(main())
    printer = state.printer()
    if not printer.json:
        for item in listing["items"]:
            item["status"] = item["status"]["state"]
    printer.page(listing, COLUMNS)


@app.command()
def get(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Show one sandbox."""
    state = State.of(ctx)

    async def main() -> SandboxInfo:
        async with state.client() as client:
            return await client.get(sandbox_id)

    state.printer().record(described(run(main())))


@app.command()
def kill(
    ctx: typer.Context,
    sandbox_ids: Annotated[list[str], typer.Argument(help="Ids of sandboxes.", show_default=False)],
    output: Output = None,
) -> None:
    """End sandboxes and remove them."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.client() as client, waiting("removing"):
            for sandbox_id in sandbox_ids:
                await client.kill(sandbox_id)

    run(main())
    rows = [{"sandbox_id": sandbox_id, "status": "terminated"} for sandbox_id in sandbox_ids]
    state.printer().rows(rows, ["sandbox_id", "status"])


@app.command()
def pause(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Freeze a sandbox; it keeps everything but gets no processor time."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox, waiting("pausing"):
            await sandbox.pause()

    run(main())
    state.printer().done(f"paused {sandbox_id}", sandbox_id=sandbox_id, status="paused")


@app.command()
def resume(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    resume_timeout: Ready = 30.0,
    output: Output = None,
) -> None:
    """Let a paused sandbox go on."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox, waiting("resuming"):
            await sandbox.resume(ready_timeout=resume_timeout)

    run(main())
    state.printer().done(f"resumed {sandbox_id}", sandbox_id=sandbox_id, status="running")


@app.command()
def fork(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=64, help="How many.")] = 1,
    output: Output = None,
) -> None:
    """Make others that begin where a sandbox stands. They live for ten minutes unless they are renewed."""
    state = State.of(ctx)

    async def main() -> list[dict[str, Any]]:
        async with state.sandbox(sandbox_id) as sandbox, waiting("forking"):
            return [{"id": child.id} for child in await sandbox.fork(count)]

    state.printer().rows(run(main()), ["id"])


@app.command()
def renew(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    timeout: Annotated[
        float,
        typer.Option("-t", "--timeout", parser=duration, metavar="DURATION", help="How long from now."),
    ],
    output: Output = None,
) -> None:
    """Set how long a sandbox lives from now on."""
    state = State.of(ctx)

    async def main() -> str:
        async with state.client() as client:
            return (await client.renew(sandbox_id, timeout)).isoformat()

    until = run(main())
    state.printer().done(f"lives until {until}", sandbox_id=sandbox_id, expires_at=until)


@app.command()
def endpoint(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    port: Annotated[int, typer.Option("-p", "--port", min=1, max=65535, help="Port inside.")],
    output: Output = None,
) -> None:
    """Show where a port of a sandbox is reached, and which headers to send."""
    state = State.of(ctx)

    async def main() -> dict[str, Any]:
        async with state.client() as client:
            found = await client.endpoint(sandbox_id, port)
        return {"endpoint": found.address, "headers": dict(found.headers)}

    state.printer().record(run(main()))


@app.command()
def health(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Tell whether a sandbox answers; ends with 1 when it does not."""
    state = State.of(ctx)

    async def main() -> bool:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.health()

    healthy = run(main())
    word = "healthy" if healthy else "unhealthy"
    state.printer().done(f"{sandbox_id} is {word}", sandbox_id=sandbox_id, healthy=healthy)
    raise typer.Exit(0 if healthy else 1)


@app.command()
def metrics(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until stopped.")] = False,
    output: Output = None,
) -> None:
    """Show what a sandbox uses of its processors and memory."""
    state = State.of(ctx)
    printer = state.printer()

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            _show_metrics(await sandbox.metrics(), printer, line=watch)
            while watch:
                await asyncio.sleep(WATCH_SECONDS)
                _show_metrics(await sandbox.metrics(), printer, line=True)

    run(main())


def _show_metrics(found: Metrics, printer: Printer, *, line: bool) -> None:
    if not line:
        printer.record(found)
    elif printer.json:
        print(json.dumps(plain(found)), flush=True)
    else:
        memory = f"{found.mem_used_mib:.1f} of {found.mem_total_mib:.0f} MiB"
        print(f"cpu {found.cpu_used_pct:.1f} % of {found.cpu_count:g}, memory {memory}", flush=True)


def described(info: SandboxInfo) -> dict[str, Any]:
    """A sandbox as scripts read it."""
    data: dict[str, Any] = plain(info)
    status = {name: data.pop(name) for name in ("state", "reason", "message")}
    return {"id": data.pop("id"), "status": status, **data}
