# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Trees of real processes, stopped, continued and ended as one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from casulo.runtimes import processtree

TREE = "sleep 60 & sh -c 'sleep 60 & wait' & wait"


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    root = subprocess.Popen(["sh", "-c", TREE], start_new_session=True)
    deadline = time.monotonic() + 5
    while len(processtree.members(root.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    yield root
    processtree.kill(root.pid)
    root.wait()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_all_of_it_stops_and_goes_on(tree: subprocess.Popen[bytes]) -> None:
    members = processtree.members(tree.pid)
    assert len(members) == 4 and tree.pid in members and os.getpid() not in members
    assert not processtree.is_stopped(tree.pid)
    processtree.stop(tree.pid)
    assert {state(pid) for pid in members} == {"T"}
    assert processtree.is_stopped(tree.pid)
    processtree.resume(tree.pid)
    time.sleep(0.05)
    assert {state(pid) for pid in members} == {"S"}


@pytest.mark.parametrize("stopped", [False, True])
def test_all_of_it_ends(tree: subprocess.Popen[bytes], stopped: bool) -> None:
    members = processtree.members(tree.pid) - {tree.pid}
    if stopped:
        processtree.stop(tree.pid)
    processtree.kill(tree.pid)
    assert tree.wait(5) == -9
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in members) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_lives(pid) for pid in members)


def _lives(pid: int) -> bool:
    try:
        return state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_is_gone_has_no_tree() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert processtree.members(gone.pid) == set()
    processtree.kill(gone.pid)
    assert not processtree.is_stopped(gone.pid)
