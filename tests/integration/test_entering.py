# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Programs that begin inside control groups, with the helper and without it."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from casulo import linux
from casulo.images import daemon
from casulo.model.sandbox import Resources
from casulo.runtimes.local import cgroups, entering
from support.machine import cannot_run

RESOURCES = Resources(cpu_millis=1000, memory_bytes=64 << 20, pids=32, shm_bytes=1 << 20)


@pytest.fixture
def group() -> Iterator[cgroups.Group]:
    if os.geteuid() != 0:
        cannot_run("control groups are made as root")
    parent = f"casulo-test/{uuid.uuid4().hex[:6]}"
    made = cgroups.Group(cgroups.detect(), f"{parent}/one")
    made.create(RESOURCES, 0)
    yield made
    made.remove()
    cgroups.remove_empty(parent)


@pytest.fixture(params=["helper", "shell"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "shell":
        monkeypatch.setattr(entering, "_program", lambda: None)
    elif daemon.entering_program(daemon.host_architecture()) is None:
        cannot_run("the helper is built where there is a C compiler")
    return str(request.param)


def _run(group: cgroups.Group, words: list[str], output: Path) -> int:
    with output.open("wb") as file, entering.doors(group) as doors:
        pid = doors.start(words, {file.fileno(): 1})
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_is_in_every_group_from_the_beginning(group: cgroups.Group, way: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert _run(group, ["cat", "/proc/self/cgroup"], output) == 0
    lines = [line.split(":", 2) for line in output.read_text().splitlines()]
    places = {name: path for _, names, path in lines for name in names.split(",")}
    for controller in group.v1_paths:
        assert places[controller] == f"/{group.name}", controller
    if group.layout.v2:
        assert places[""] == f"/{group.name}" + ("" if group.layout.mode == "v2" else "/daemon")


def test_no_door_and_no_folder_of_the_host_stays_open(group: cgroups.Group, way: str, tmp_path: Path) -> None:
    """Engines that keep what is open would hand it to the sandbox."""
    output, stray = tmp_path / "output", os.open("/", os.O_RDONLY)
    os.set_inheritable(stray, True)
    try:
        linux.keep_descriptors_private()
        assert _run(group, ["sh", "-c", "for fd in /proc/$$/fd/*; do readlink $fd; done; true"], output) == 0
    finally:
        os.close(stray)
    opened = [line for line in output.read_text().splitlines() if line.startswith("/")]
    folders = [path for path in opened if Path(path).is_dir()]
    doors = [path for path in opened if path.startswith("/sys/")]
    assert not folders
    assert way == "shell" or not doors
    assert way == "shell" or not [path for path in opened if path.startswith("/memfd")]


def test_its_end_and_what_is_wrong_are_told(group: cgroups.Group, way: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert _run(group, ["sh", "-c", "echo out; echo err >&2; exit 7"], output) == 7
    assert output.read_text() == "out\nerr\n"
    assert _run(group, ["/no/such/program"], output) != 0
    assert output.read_text()


def test_it_ends_with_who_was_asked_to_start_it(group: cgroups.Group, way: str) -> None:
    with entering.doors(group) as doors:
        pid = doors.start(["sleep", "60"], {})
    deadline = time.monotonic() + 10
    while not group.processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while group.processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group.processes() == set()
