# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The help of every command is pinned: a change of it is a change of the interface, and to be seen as one.

After a wanted change: `UPDATE_SNAPSHOTS=1 python -m pytest tests/unit/cli/test_help.py`.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from casulo.cli.main import app

from .conftest import Osb

HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Copyright the Casulo authors\n\n"
COMPLETION = ("install_completion", "show_completion")
SNAPSHOT = Path(__file__).with_name("help.txt")


def pages(command: Any, words: tuple[str, ...] = ("osb",)) -> Iterator[str]:
    """What the help says of each command, free of how a version of typer lays it out."""
    lines = ["$ " + " ".join(words), *inspect.cleandoc(command.help or "").splitlines()]
    for parameter in command.params:
        if not getattr(parameter, "hidden", False) and parameter.name not in COMPLETION:
            names = " ".join([*parameter.opts, *parameter.secondary_opts])
            required = " (required)" if parameter.required else ""
            lines.append(f"    {names}{required}: {parameter.help}")
    yield "\n".join(lines) + "\n"
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*words, name))


def test_help_is_as_pinned() -> None:
    found = HEADER + "\n".join(pages(typer.main.get_command(app)))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text()


@pytest.mark.parametrize("words", [[], ["sandbox"], ["run"]])
def test_help_comes_at_once(lone_osb: Osb, words: list[str]) -> None:
    """What makes a start slow is what it imports: nothing that help does not need."""
    command = [sys.executable, "-X", "importtime", "-m", "casulo.cli", *words, "--help"]
    done = subprocess.run(
        command, env=lone_osb.environment, check=True, capture_output=True, text=True, timeout=60
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"fastapi", "httptools", "sqlalchemy", "uvicorn", "websockets"}
