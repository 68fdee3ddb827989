# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Fixtures for all suites, and a loud account of the tests that this machine cannot run.

Servers are real processes with a data folder of their own and a port that the kernel chose. They
live for the session, since starting one costs more than most tests; a test that wants to end its
server makes one with `new_server`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import sharing
from support.machine import CANNOT_RUN, cannot_run, why_no_local_runtime
from support.server import Server

NewServer = Callable[..., Server]
_serial = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For runs in several processes."""
    sharing.in_groups(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that could not run are no passes; nobody should have to look for them."""
    reports = terminalreporter.stats.get("skipped", [])
    found = [r for r in reports if isinstance(r.longrepr, tuple) and CANNOT_RUN in r.longrepr[2]]
    if not found:
        return
    terminalreporter.section(f"{CANNOT_RUN}: {len(found)} tests", sep="!", red=True, bold=True)
    for report in found:
        reason = report.longrepr[2].partition(f"{CANNOT_RUN}: ")[2]
        terminalreporter.line(f"{report.nodeid}: {reason}", red=True)


def _make(data_dir: Path, runtime: str, extra: str = "", local: str = "") -> Server:
    if runtime == "local" and (reason := why_no_local_runtime()):
        cannot_run(reason)
    table = f'[local]\nnetwork = "{sharing.network(next(_serial))}"\nslots = 4\n{local}'
    return Server(data_dir, runtime, extra + (table if runtime == "local" else ""))


def _end(server: Server) -> None:
    """Leave nothing behind, whatever the tests did."""
    if not server.url:
        return  # it never started
    if server.process is None:
        server.start()
    server.delete_all()
    server.stop()


def _starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    made: list[Server] = []

    def start(runtime: str, extra: str = "", local: str = "") -> Server:
        server = _make(tmp_path_factory.mktemp(f"server-{runtime}"), runtime, extra, local)
        made.append(server)
        return server.start()

    yield start
    for server in made:
        _end(server)


@pytest.fixture
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Starts servers for one test: `new_server("local", extra="[sandbox]\\n...")`."""
    yield from _starting(tmp_path_factory)


@pytest.fixture(scope="module")
def new_module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """The same for the tests of one module."""
    yield from _starting(tmp_path_factory)


def _session_server(tmp_path_factory: pytest.TempPathFactory, runtime: str) -> Iterator[Server]:
    server = _make(tmp_path_factory.mktemp(f"server-{runtime}"), runtime)
    server.start()
    yield server
    _end(server)


@pytest.fixture(scope="session")
def fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server on the fake runtime: the real daemon as a plain process, no isolation."""
    yield from _session_server(tmp_path_factory, "fake")


@pytest.fixture(scope="session")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server on the local runtime: real sandboxes."""
    yield from _session_server(tmp_path_factory, "local")


@pytest.fixture(params=["fake", "local"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each test that asks for it runs once on every runtime."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found
