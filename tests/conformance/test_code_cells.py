# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The corpus of cells: every language, on every runtime, each language in one context from top to bottom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from casulo.client import Client, Connection, Sandbox
from support.cells import Cell
from support.cells.corpus import CORPUS
from support.server import Server


@pytest.fixture(scope="module", params=["fake", "local"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox for the whole corpus, large enough for compilers."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    resources = {"memory": "2Gi", "cpu": "2"}
    # The fake runtime sees this machine, so its compiler may keep what it made for the next run.
    env = {"GOCACHE": str(Path.home() / ".cache" / "go-build")} if request.param == "fake" else {}
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create("host", client=client, resources=resources, env=env) as made,
    ):
        yield made


@pytest.mark.parametrize(
    ("language", "cell"),
    [
        pytest.param(language, cell, id=f"{language}-{cell.name.replace(' ', '-')}")
        for language, cells in CORPUS.items()
        for cell in cells
    ],
)
def test_cell(sandbox: Sandbox, language: str, cell: Cell) -> None:
    cell.check(sandbox.code.run(cell.code, language=language, timeout=60))


def test_interrupt_of_a_compiled_program_keeps_the_state(sandbox: Sandbox) -> None:
    """Here, because the cells before have filled the compiler's cache."""
    context = sandbox.code.create_context("go")
    sandbox.code.run("x := 5", context=context).check()
    stopper = threading.Timer(3.0, lambda: sandbox.code.interrupt(context))
    stopper.start()
    done = sandbox.code.run("fmt.Println(x)\nfor {}", context=context)
    stopper.join()
    assert done.error is not None and done.error.reason == "interrupted" and done.stdout == "5\n"
    assert sandbox.code.run("x", context=context).text == "5"


def test_corpus_is_large_enough() -> None:
    assert len(CORPUS["python"]) >= 60
    assert all(len(cells) >= 15 for cells in CORPUS.values())
