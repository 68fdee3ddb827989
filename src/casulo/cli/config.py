# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb config`: the client's config file and what it comes to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from casulo.cli.arguments import Output, lifetime
from casulo.cli.state import State

app = typer.Typer(help="Show and change the client's configuration.", no_args_is_help=True)

KEYS = {
    "connection.api_key": "text",
    "connection.domain": "text",
    "connection.protocol": "text",
    "connection.request_timeout": "number",
    "connection.use_server_proxy": "truth",
    "output.color": "truth",
    "defaults.image": "text",
    "defaults.timeout": "duration",
}
TEMPLATE = """\
# What `osb` and the Python client use when neither an option nor the environment says otherwise.

[connection]
# domain = "localhost:8080"
# protocol = "http"
# api_key = ""
# request_timeout = 30
# use_server_proxy = false

[output]
# color = true

[defaults]
# image = "host"
# timeout = "10m"
"""


@app.command()
def init(
    ctx: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    output: Output = None,
) -> None:
    """Write a config file in which everything is still commented out."""
    state = State.of(ctx)
    path = _path(state)
    if path.exists() and not force:
        raise typer.BadParameter(f"{path} exists; use --force to overwrite it")
    _save(path, TEMPLATE)
    state.printer().done(f"wrote {path}", path=str(path))


@app.command()
def show(ctx: typer.Context, output: Output = None) -> None:
    """Show what options, environment and file come to. The API key is not shown."""
    state = State.of(ctx)
    connection = state.connection()
    state.printer().record(
        {
            "config_file": str(_path(state)),
            "url": connection.url,
            "from": connection.source,
            "api_key": "set" if connection.api_key else "none",
            "request_timeout": connection.request_timeout,
            "use_server_proxy": connection.use_server_proxy,
            "defaults": state.config().get("defaults", {}),
        }
    )


@app.command("set")
def set_(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="For example connection.domain.", show_default=False)],
    value: Annotated[str, typer.Argument(help="Its new value.", show_default=False)],
    output: Output = None,
) -> None:
    """Set one value in the config file; everything else in it stays as it is."""
    state = State.of(ctx)
    path = _path(state)
    if key not in KEYS:
        raise typer.BadParameter(f"no such key: {key}; there are {', '.join(KEYS)}")
    section, _, name = key.partition(".")
    before = path.read_text(encoding="utf-8") if path.exists() else TEMPLATE
    _save(path, with_value(before, section, name, _literal(KEYS[key], value)))
    state.printer().done(f"set {key} in {path}", key=key, path=str(path))


def with_value(text: str, section: str, name: str, literal: str) -> str:
    """`text` with the line of `name` in `[section]` replaced, or added there."""
    lines, here, at = text.splitlines(), "", None
    for number, line in enumerate(lines):
        header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
        if header:
            here = header.group(1).strip()
        if here != section:
            continue
        at = number + 1 if at is None else at
        if re.match(rf"\s*{re.escape(name)}\s*=", line):
            lines[number] = f"{name} = {literal}"
            return "\n".join(lines) + "\n"
    if at is None:
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        at = len(lines)
    lines.insert(at, f"{name} = {literal}")
    return "\n".join(lines) + "\n"


def _literal(kind: str, value: str) -> str:
    from casulo.client.connection import truth

    if kind == "truth":
        return "true" if truth("value", value) else "false"
    if kind == "number":
        try:
            return f"{float(value):g}"
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a number") from None
    if kind == "duration":
        lifetime(value)
    return json.dumps(value)


def _path(state: State) -> Path:
    from casulo.client.connection import CONFIG_FILE

    return (state.config_file or Path(CONFIG_FILE)).expanduser()


def _save(path: Path, text: str) -> None:
    """Only its owner may read it: it can hold an API key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
