# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How tests are shared out among the processes of one run, and what each process has to itself."""

from __future__ import annotations

import os
import re

from xdist.scheduler import LoadScopeScheduling

ALONE = ("docker", "microvm", "firecracker")
"""Runtimes of which a machine bears one engine at a time: all their tests go to one process."""

_BLOCKS = 256
_MOST_PROCESSES = 8
_RUNTIMES = re.compile(r"[\[-](docker|microvm|firecracker|gvisor|runc|local|fake)[\]-]")


class Sharing(LoadScopeScheduling):
    """Keeps the tests of one file and runtime together and in order, since they share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """What tests that go to the same process have in common."""
    file, _, name = nodeid.partition("::")
    found = _RUNTIMES.search(name)
    runtime = found[1] if found else ""
    alone = next((name for name in ALONE if name == runtime or f"/{name}/" in file), "")
    return alone or f"{file} {runtime}"


def process_number() -> int:
    """Which of the run's processes this is, from 0."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def network(serial: int) -> str:
    """A /20 for each server, so that servers of one run, and of two runs, rarely share addresses."""
    share = _BLOCKS // _MOST_PROCESSES
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    block = (process_number() % _MOST_PROCESSES * share + (run * 7 + serial) % share) % _BLOCKS
    return f"10.{214 + block // 16}.{block % 16 * 16}.0/20"
