# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The process that is moved between control groups: it moves while wanted, and leaves nothing."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from casulo.runtimes.local import cgroups
from casulo.runtimes.local.stirring import Stirrer
from support.machine import cannot_run


def test_it_moves_while_wanted_and_leaves_nothing() -> None:
    if os.geteuid() != 0:
        cannot_run("control groups are made as root")
    layout = cgroups.detect()
    name = f"casulo-test-{uuid.uuid4().hex[:6]}"
    stirrer = Stirrer(layout, f"{name}/one")
    stirrer.open()
    tree = layout.v1.get("pids") or layout.v2
    assert tree is not None
    places = [tree / name / "one.stir" / place for place in "ab"]
    stirrer.stir()
    seen: set[Path] = set()
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        stirrer.stir()
        seen |= {place for place in places if (place / "cgroup.procs").read_text()}
    assert len(seen) == 2
    stirrer.close()
    assert list((tree / name).glob("*/")) == []
    (tree / name).rmdir()
