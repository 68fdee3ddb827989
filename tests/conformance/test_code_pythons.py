# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The Python driver under every Python from 3.8 on that this machine has; the fake runtime sees them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from casulo.client import Client, Connection, Sandbox
from support import code_image
from support.cells import Cell, python
from support.cells.corpus import WITHOUT_IPYTHON
from support.machine import cannot_run
from support.pythons import find
from support.server import Server

NewServer = Callable[..., Server]
VERSIONS = tuple(f"3.{minor}" for minor in range(8, 15))


SUITES = {"3.14": "forky"}
"""Debian suites whose Python is of a version that a machine may not have."""

pytestmark = pytest.mark.timeout(900)  # the image of such a suite may have to be built


@pytest.fixture(scope="module", params=VERSIONS)
def sandbox(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, new_module_server: NewServer
) -> Iterator[Sandbox]:
    """A sandbox whose `python3` is of one version."""
    program, suite = find(request.param), SUITES.get(request.param)
    if program is None and suite is None:
        cannot_run(f"Python {request.param} is not on this machine")
    if program is not None:
        folder = tmp_path_factory.mktemp("python")
        (folder / "python3").symlink_to(program)
        server: Server = request.getfixturevalue("fake_server")
        image, environment = "host", {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}
    else:
        assert suite is not None
        server = new_module_server("local", f'[images]\nfolder = "{code_image.store_of_suite(suite)}"\n')
        image, environment = code_image.suite_name(suite), {}
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create(image, client=client, env=environment) as made,
    ):
        version = made.code.run("import sys; '%d.%d' % sys.version_info[:2]").check().text.strip("'")
        if program is None and version != request.param:
            cannot_run(
                f"Debian {suite} has Python {version} by now, and {request.param} is not on this machine"
            )
        assert version == request.param
        yield made


def test_corpus(sandbox: Sandbox) -> None:
    context = sandbox.code.create_context("python")
    cells, faults = list(python.CELLS), []
    if sandbox.code.run(
        "import importlib.metadata as m; m.version('ipython')"
    ).ok:  # then magic is IPython's, which speaks otherwise
        cells = [cell for cell in cells if not WITHOUT_IPYTHON.search(cell.code)]
    for cell in cells:
        try:
            cell.check(sandbox.code.run(cell.code, context=context, timeout=60))
        except AssertionError as fault:
            faults.append(f"{cell.name}: {str(fault)[:300]}")
    assert not faults, "\n".join(faults)


def test_chosen_by_version(sandbox: Sandbox) -> None:
    """The environment may ask for the version by name."""
    found = sandbox.code.run("sys.version_info[:2]").text
    wanted = re.sub(r"[^\d]+", ".", found).strip(".")
    asked = f"mkdir -p $(dirname $EXECD_ENVS) && echo PYTHON_VERSION={wanted} >> $EXECD_ENVS"
    sandbox.commands.run(asked).check()
    context = sandbox.code.create_context("python")
    Cell("version", "import sys\nsys.version_info[:2]", value=found).check(
        sandbox.code.run("import sys\nsys.version_info[:2]", context=context)
    )
