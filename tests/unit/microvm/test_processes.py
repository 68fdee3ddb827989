# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""No monitor stays listed as a dead child, whoever killed it and when."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from casulo import linux
from casulo.runtimes.microvm import processes
from casulo.runtimes.microvm.vmm import Process


def test_one_that_was_dead_already_is_reaped_too() -> None:
    for earlier in (False, True):
        child = subprocess.Popen(["sleep", "600"])
        child.returncode = 0  # it is reaped by its number
        started = linux.start_time(child.pid)
        assert started is not None
        if earlier:
            subprocess.run(["kill", "-9", str(child.pid)], check=True)
            while linux.start_time(child.pid) is not None:
                time.sleep(0.01)
        processes.kill(Process(child.pid, started))
        assert not Path(f"/proc/{child.pid}").exists()
        processes.kill(Process(child.pid, started))
