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
from ipaddress import IPv4Network

import pytest
from xdist.remote import Producer

from support import engine as engines
from support import microvm, postgres, sharing, unstable
from support.engine import Engine
from support.machine import CANNOT_RUN, cannot_run, why_no_local_runtime
from support.server import Server

NewServer = Callable[..., Server]

PLACES = ("fake", "local", "runc", "gvisor", "docker", "microvm", microvm.FIRECRACKER)
"""What a sandbox may run on: a runtime's name, or one of the local runtime's settings below."""

_LOCAL = {"local": "", "runc": 'oci_runtime = "runc"\n', "gvisor": 'isolation = "gvisor"\n'}
_serial = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For machines that emulate others slowly."""
    microvm.choose(config, items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> sharing.Sharing:
    """For runs in several processes."""
    return sharing.Sharing(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that could not run are no passes; nobody should have to look for them."""
    unstable.show(terminalreporter)
    reports = terminalreporter.stats.get("skipped", [])
    found = [r for r in reports if isinstance(r.longrepr, tuple) and CANNOT_RUN in r.longrepr[2]]
    if not found:
        return
    terminalreporter.section(f"{CANNOT_RUN}: {len(found)} tests", sep="!", red=True, bold=True)
    for report in found:
        reason = report.longrepr[2].partition(f"{CANNOT_RUN}: ")[2]
        terminalreporter.line(f"{report.nodeid}: {reason}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Before the summary is printed."""
    unstable.judge(session)


def _make(request: pytest.FixtureRequest, place: str, extra: str = "", local: str = "") -> Server:
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    data_dir = factory.mktemp(f"server-{place}")
    if place == "docker":
        engine: Engine = request.getfixturevalue("engine")
        settings = engine.settings + _engine_networks() + local
        return Server(data_dir, place, extra + settings, engines.IMAGE)
    if place == "microvm":
        if reason := microvm.why_not():
            cannot_run(reason)
        return Server(data_dir, place, extra + microvm.tables(sharing.network(next(_serial)), extra) + local)
    if place == microvm.FIRECRACKER:
        if reason := microvm.why_no_firecracker():
            cannot_run(reason)
        settings = microvm.tables(sharing.network(next(_serial)), extra, microvm.FIRECRACKER)
        return Server(data_dir, "microvm", extra + settings)
    if place not in _LOCAL:
        return Server(data_dir, place, extra)
    if reason := why_no_local_runtime(place):
        cannot_run(reason)
    table = f'[local]\nnetwork = "{sharing.network(next(_serial))}"\nslots = 4\n{_LOCAL[place]}{local}'
    return Server(data_dir, "local", extra + table)


def _engine_networks() -> str:
    """Two engines of one machine choose the same addresses when they are let."""
    subnet, cables = IPv4Network(sharing.network(next(_serial))).subnets(1)
    return f'subnet = "{subnet}"\ncable_network = "{cables}"\n'


def _end(server: Server) -> None:
    """Leave nothing behind, whatever the tests did."""
    if not server.url:
        return  # it never started
    if server.process is None:
        server.start()
    server.delete_all()
    server.stop()


def _starting(request: pytest.FixtureRequest) -> Iterator[NewServer]:
    made: list[Server] = []

    def start(place: str, extra: str = "", local: str = "") -> Server:
        server = _make(request, place, extra, local)
        made.append(server)
        return server.start()

    yield start
    for server in made:
        _end(server)


@pytest.fixture
def new_server(request: pytest.FixtureRequest) -> Iterator[NewServer]:
    """Starts servers for one test: `new_server("local", extra="[sandbox]\\n...")`."""
    yield from _starting(request)


@pytest.fixture(scope="module")
def new_module_server(request: pytest.FixtureRequest) -> Iterator[NewServer]:
    """The same for the tests of one module."""
    yield from _starting(request)


def _session_server(request: pytest.FixtureRequest, place: str) -> Iterator[Server]:
    server = _make(request, place)
    server.start()
    yield server
    _end(server)


@pytest.fixture(scope="session")
def fake_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server on the fake runtime: the real daemon as a plain process, no isolation."""
    yield from _session_server(request, "fake")


@pytest.fixture(scope="session")
def local_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server on the local runtime: real sandboxes."""
    yield from _session_server(request, "local")


@pytest.fixture(scope="session")
def database_server() -> Iterator[postgres.Postgres]:
    """A PostgreSQL server."""
    if reason := postgres.why_not():
        cannot_run(reason)
    with postgres.running() as made:
        yield made


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine with the images of the suites."""
    if reason := engines.why_not():
        cannot_run(reason)
    with engines.running() as started:
        engines.add_images(started)
        yield started


@pytest.fixture(scope="session")
def docker_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server on the Docker runtime."""
    yield from _session_server(request, "docker")


@pytest.fixture(scope="session")
def runc_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server on the local runtime with runc."""
    yield from _session_server(request, "runc")


@pytest.fixture(scope="session")
def gvisor_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server whose sandboxes have a kernel of their own unless they ask for less."""
    yield from _session_server(request, "gvisor")


@pytest.fixture(scope="session")
def microvm_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server on the microVM runtime."""
    for server in _session_server(request, "microvm"):
        microvm.warm_up(server)
        yield server


@pytest.fixture(scope="session")
def firecracker_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The same with the other monitor."""
    for server in _session_server(request, microvm.FIRECRACKER):
        microvm.warm_up(server)
        yield server


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """What the sandboxes of this run of the test run on."""
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, place: str) -> Server:
    """Each test that asks for it runs once in every place."""
    found: Server = request.getfixturevalue(f"{place}_server")
    return found
