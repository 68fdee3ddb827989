# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb egress`: what a sandbox may reach, and what became of its attempts."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Output, SandboxId
from casulo.cli.printer import note
from casulo.cli.state import State, run

if TYPE_CHECKING:
    pass

app = typer.Typer(help="See and change what a sandbox may reach.", no_args_is_help=True)
Targets = Annotated[
    list[str], typer.Argument(help="example.com, '*.example.com', 192.0.2.0/24 or preset:pypi.")
]
Ports = Annotated[list[str] | None, typer.Option("-p", "--port", help="Only this port or range; repeat it.")]


@app.command()
def get(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Print the policy as JSON."""
    _show(State.of(ctx), sandbox_id, lambda egress: egress.get())


@app.command("set")
def set_(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    file: Annotated[Path, typer.Argument(help="File with the policy, JSON; - is standard input.")],
    output: Output = None,
) -> None:
    """Replace the policy."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    try:
        policy = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}") from None
    _show(State.of(ctx), sandbox_id, lambda egress: egress.set(policy))


@app.command()
def allow(
    ctx: typer.Context, sandbox_id: SandboxId, targets: Targets, port: Ports = None, output: Output = None
) -> None:
    """Allow targets, before all rules that are there."""
    _show(State.of(ctx), sandbox_id, lambda egress: egress.allow(*targets, ports=port or ()))


@app.command()
def deny(
    ctx: typer.Context, sandbox_id: SandboxId, targets: Targets, port: Ports = None, output: Output = None
) -> None:
    """Deny targets, before all rules that are there."""
    _show(State.of(ctx), sandbox_id, lambda egress: egress.deny(*targets, ports=port or ()))


@app.command()
def rm(ctx: typer.Context, sandbox_id: SandboxId, targets: Targets, output: Output = None) -> None:
    """Take the rules on targets out."""
    _show(State.of(ctx), sandbox_id, lambda egress: egress.remove(*targets))


@app.command()
def patch(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    rule: Annotated[list[str], typer.Option("--rule", help="allow=TARGET or deny=TARGET; repeat it.")],
    output: Output = None,
) -> None:
    """Put several rules before those that are there."""
    rules = []
    for text in rule:
        action, separator, target = text.partition("=")
        if not separator or action not in ("allow", "deny"):
            raise typer.BadParameter(f"{text!r}: write allow=example.com or deny=example.com")
        rules.append({"action": action, "target": target})
    _show(State.of(ctx), sandbox_id, lambda egress: egress._policy("PATCH", rules))


@app.command()
def test(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    url: Annotated[str, typer.Argument(help="https://…, or tcp://, udp:// and icmp:// with an address.")],
    method: Annotated[str, typer.Option("-X", "--method", help="Method of a plain HTTP request.")] = "GET",
    output: Output = None,
) -> None:
    """Say what would become of a request, without making it; exits with 1 when it is denied."""
    state = State.of(ctx)
    told = _ask(state, sandbox_id, lambda egress: egress.test(url, method=method))
    printer = state.printer()
    if printer.json:
        printer.record(told)
    else:
        print(f"{'allowed' if told['allow'] else 'denied'} by {told['rule']}: {told['reason']}")
    if not told["allow"]:
        raise typer.Exit(1)


@app.command()
def log(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    output: Output = None,
) -> None:
    """Show what was decided, and why."""
    state = State.of(ctx)
    as_json = state.printer().json

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox, aclosing(sandbox.egress.log(follow=follow)) as lines:
            async for record in lines:
                print(json.dumps(record) if as_json else _line(record), flush=True)

    run(main())


@app.command()
def learn(ctx: typer.Context, sandbox_id: SandboxId, output: Output = None) -> None:
    """Print the least policy that allows what the sandbox has reached.

    A sandbox without a policy is put under one that allows everything and records it: run the work, then
    ask again.
    """
    state = State.of(ctx)

    async def main() -> dict[str, Any]:
        async with state.sandbox(sandbox_id) as sandbox:
            policy = await sandbox.egress.get()
            if policy["defaultAction"] == "allow" and not policy["egress"]:
                await sandbox.egress.set({"defaultAction": "allow"})
            return learned(await sandbox.egress.seen())

    found = run(main())
    if not found["egress"]:
        note("nothing was reached yet; run the work in the sandbox, then ask again")
    print(json.dumps(found, indent=2))


def learned(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """The least policy that allows these destinations: names where there were names."""
    ports: dict[str, set[int]] = {}
    for item in seen:
        ports.setdefault(item.get("name") or item["address"], set()).add(item["port"])
    rules = [{"action": "allow", "target": name, "ports": sorted(ports[name])} for name in sorted(ports)]
    return {"defaultAction": "deny", "egress": rules}


def _line(record: dict[str, Any]) -> str:
    where = record.get("name") or record.get("address") or ""
    if record.get("port"):
        where += f":{record['port']}"
    parts = [record["time"][11:23], f"{record['decision']:6}", f"{record['kind']:6}", where]
    parts.append(f"{record.get('method', '')} {record.get('path', '')}".strip())
    if record.get("binding"):
        parts.append(f"binding {record['binding']}")
    if record["decision"] == "closed":
        parts.append(f"{record.get('bytesUp', 0)} bytes up, {record.get('bytesDown', 0)} down")
    else:
        parts.append(f"({record.get('rule', '')}: {record.get('reason', '')})")
    if record.get("repeated"):
        parts.append(f"x{record['repeated'] + 1}")
    return "  ".join(part for part in parts if part)


def _ask(state: State, sandbox_id: str, call: Any) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with state.sandbox(sandbox_id) as sandbox:
            asked: Coroutine[Any, Any, dict[str, Any]] = call(sandbox.egress)
            return await asked

    return run(main())


def _show(state: State, sandbox_id: str, call: Any) -> None:
    print(json.dumps(_ask(state, sandbox_id, call), indent=2))
