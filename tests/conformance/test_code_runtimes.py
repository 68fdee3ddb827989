# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cells where they run behind an engine or on another kernel: the corpus less what only takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from casulo.client import Client, Connection, Sandbox
from support import engine as engines
from support import microvm
from support.cells.corpus import CORPUS
from support.machine import cannot_run
from support.server import Server

LONG = {"many lines", "one long line", "huge repr", "error of megabytes"}
FIRST = {("gvisor", "go"): 5, ("docker", "go"): 8}
"""Each cell starts a compiler, which takes its time without a cache, and on another kernel."""

PROBES = {
    "python": "command -v python3",
    "javascript": "command -v node",
    "typescript": "command -v node",
    "java": "command -v java || ls /usr/lib/jvm/*/bin/java",
    "go": "command -v go || ls /usr/local/go/bin/go",
    "bash": "command -v bash",
}
ENDLESS = ("while True: pass", "import time; time.sleep(60)", "import os; os.read(os.pipe()[0], 1)")


@pytest.fixture(scope="module", params=["docker", "gvisor", "microvm"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox for all languages."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    image = server.image
    if request.param == "docker":
        image = engines.add_languages(request.getfixturevalue("engine"))
    resources = {"memory": "2Gi", "cpu": "2"}
    if request.param == "microvm" and not microvm.EVERYTHING:
        resources = {}  # of which there is a template
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create(image, client=client, resources=resources) as made,
    ):
        yield made


@pytest.mark.parametrize("language", CORPUS)
def test_corpus(sandbox: Sandbox, language: str, request: pytest.FixtureRequest) -> None:
    if not sandbox.commands.run(PROBES[language]).ok:
        cannot_run(f"the image of this runtime's tests has no {language}")
    faults = []
    runtime = request.node.callspec.params["sandbox"]
    for cell in CORPUS[language][: FIRST.get((runtime, language))]:
        if cell.name not in LONG:
            try:
                cell.check(sandbox.code.run(cell.code, language=language, timeout=100))
            except AssertionError as fault:
                faults.append(f"{cell.name}: {str(fault)[:500]}")
    assert not faults, "\n".join(faults)


def test_interrupts(sandbox: Sandbox) -> None:
    context = sandbox.code.create_context("python")
    sandbox.code.run("x = 5", context=context).check()
    for code in ENDLESS:
        stopper = threading.Timer(0.5, lambda: sandbox.code.interrupt(context))
        stopper.start()
        begun = time.monotonic()
        done = sandbox.code.run(code, context=context)
        stopper.join()
        assert time.monotonic() - begun < 10
        assert done.error is not None and done.error.reason == "interrupted", done
        assert sandbox.code.run("x", context=context).text == "5"


def test_death_and_removal(sandbox: Sandbox) -> None:
    context = sandbox.code.create_context("python")
    for code, reason in (("import os; os._exit(3)", "exit"), ("import os; os.abort()", "signal")):
        done = sandbox.code.run(code, context=context)
        assert done.error is not None and (done.error.name, done.error.reason) == ("ContextDiedError", reason)
        assert sandbox.code.run("1", context=context).fresh
    sandbox.code.run("import subprocess\nsubprocess.Popen(['setsid', 'sleep', '4343'])", context=context)
    sandbox.code.delete_context(context)
    assert (
        sandbox.commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 4343'").stdout
        == "0\n"
    )
