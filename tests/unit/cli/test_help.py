# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The help of every command is pinned: a change of it is a change of the interface, and to be seen as one.

After a wanted change: `UPDATE_SNAPSHOTS=1 python -m pytest tests/unit/cli/test_help.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from casulo.cli.main import app

from .conftest import Osb

SNAPSHOT = Path(__file__).with_name("help.txt")


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


def everything() -> str:
    pages = []
    for words in walk(typer.main.get_command(app)):
        shown = CliRunner().invoke(
            app, [*words, "--help"], prog_name="osb", env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"}
        )
        assert shown.exit_code == 0, words
        pages.append(f"$ {' '.join(['osb', *words, '--help'])}\n{shown.output.strip()}\n")
    return "\n".join(pages)


def test_help_is_as_pinned() -> None:
    found = everything()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text()


@pytest.mark.parametrize("words", [[], ["sandbox"], ["run"]])
def test_help_comes_at_once(lone_osb: Osb, words: list[str]) -> None:
    best = 9.0
    for _ in range(3):
        began = time.perf_counter()
        assert lone_osb.run(*words, "--help").returncode == 0
        best = min(best, time.perf_counter() - began)
    assert best < 1.0, "the promise is 0.3 s on a machine with nothing else to do"
