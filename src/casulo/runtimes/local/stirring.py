# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Keeping the kernel ready to move processes between control groups while creates go on.

The first such move after a rest waits for an RCU grace period, 8 to 15 ms on a small machine and
half of a container's start; moves that follow within one do not. On hosts of cgroup v2 every start has
to make one, and on hybrid ones where `entering` lacks its helper. So there, from the beginning of a
create until a moment after it, a process that does nothing is moved to and fro, which costs about 2 %
of a core. (The kernel's own cure, the mount option favordynmods, would change the whole machine.)
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import structlog

from casulo.runtimes.local.cgroups import Layout

HOT_SECONDS = 0.25
_PERIOD_SECONDS = 0.004
log = structlog.get_logger(__name__)


class Stirrer:
    """One idle process and two groups for it. `stir` may be called from any thread."""

    def __init__(self, layout: Layout, parent: str) -> None:
        tree = layout.v1.get("pids") or layout.v2
        assert tree is not None, "a layout has the controllers in one of them"
        self._folder = tree / f"{parent}.stir"
        self._places = (self._folder / "a", self._folder / "b")
        self._until = 0.0
        self._closed = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stirrer", daemon=True)
        self._idler: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Make the groups and start the process, which ends with this one: its input closes."""
        for place in self._places:
            place.mkdir(parents=True, exist_ok=True)
        self._idler = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._thread.start()

    def stir(self) -> None:
        """A create begins: be ready from now until a moment after the last one."""
        self._until = time.monotonic() + HOT_SECONDS
        self._wanted.set()

    def close(self) -> None:
        """End the process and remove the groups."""
        self._closed = True
        self._wanted.set()
        if self._idler is None:
            return
        self._thread.join()
        self._idler.communicate()
        for folder in (*self._places, self._folder):
            _remove(folder)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            turn = 0
            while not self._closed and time.monotonic() < self._until:
                if not self._move(self._places[turn % 2]):
                    return
                turn += 1
                time.sleep(_PERIOD_SECONDS)
            if self._closed:
                return

    def _move(self, place: Path) -> bool:
        assert self._idler is not None
        try:
            descriptor = os.open(place / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"%d" % self._idler.pid)
            finally:
                os.close(descriptor)
        except OSError as error:  # creates are then slower, and nothing else
            log.warning("stirrer.stopped", error=str(error))
            return False
        return True


def _remove(folder: Path) -> None:
    for _ in range(100):
        try:
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError:  # its last process is still on its way out
            time.sleep(0.005)
    log.warning("stirrer.group_left", folder=str(folder))
