# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The life of the egress process: found or started, watched, and started again when it dies.

It outlives the server, because sandboxes do. What it wrote into the kernel outlives even itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from casulo.model.errors import CasuloError, Code, RuntimeFailure, Unavailable
from casulo.network.egress.calls import call
from casulo.network.egress.place import Place
from casulo.network.egress.settings import EgressSettings

_START_SECONDS = 10.0
_END_SECONDS = 5.0
_FIRST_DELAY = 0.05
_LAST_DELAY = 5.0

_log = structlog.get_logger(__name__)


class Process:
    """One process and the thread that watches it. `restarted` is called after each new start."""

    def __init__(self, place: Place, settings: EgressSettings, restarted: Callable[[], None]) -> None:
        self._place = place
        self._settings = settings
        self._restarted = restarted
        self._pid: int | None = None
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Have it running. One that an earlier server started goes on if it is still the right one."""
        for folder in (self._place.run, self._place.data):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self._place.configuration(self._settings)
        health = self.health()
        if health is not None and health["config"] == config["digest"]:
            self._pid = int(health["pid"])
        else:
            if health is not None:
                self._end(int(health["pid"]))
            self._start(config)
        self._restarted()
        self._thread = threading.Thread(target=self._watch, name="egress", daemon=True)
        self._thread.start()

    def health(self) -> dict[str, Any] | None:
        """What it says of itself; None when it does not answer."""
        try:
            told: dict[str, Any] = call(self._place.socket, "GET", "/health", seconds=2)
        except CasuloError:
            return None
        return told

    def close(self, destroy: bool) -> None:
        """Watch no longer; with `destroy` end it and take its rules out of the kernel."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)
        if destroy and self._pid is not None:
            with contextlib.suppress(Unavailable):
                call(self._place.socket, "POST", "/end?destroy=true")
            _wait(self._pid, _END_SECONDS)

    def _start(self, config: dict[str, Any]) -> None:
        self._place.config.write_text(json.dumps(config))
        self._place.config.chmod(0o600)
        command = [str(self._place.binary), "-config", str(self._place.config)]
        with self._place.output.open("ab") as output:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
            )
        self._pid = started.pid
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            health = self.health()
            if health is not None and health["pid"] == started.pid:
                _log.info("egress.started", pid=started.pid)
                return
            if started.poll() is not None:
                break
            time.sleep(0.005)
        self._end(started.pid)
        raise RuntimeFailure(
            f"the egress process did not start; {self._place.output} says why: {_last_line(self._place)}",
            code=Code.NETWORK_POLICY_FAILED,
        )

    def _end(self, pid: int) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if _wait(pid, _END_SECONDS):
                return

    def _watch(self) -> None:
        """Supervisor: whatever goes wrong, it is tried again, at first at once and then more seldom."""
        delay = _FIRST_DELAY
        while self._until_end():
            _log.error("egress.ended", pid=self._pid)
            while not self._stopping.wait(delay):
                try:
                    self._start(self._place.configuration(self._settings))
                    self._restarted()
                except (CasuloError, OSError) as error:
                    _log.error("egress.start_failed", error=str(error))
                    delay = min(delay * 2, _LAST_DELAY)
                else:
                    delay = _FIRST_DELAY
                    break

    def _until_end(self) -> bool:
        """Wait; False when it is not to be watched any more."""
        assert self._pid is not None
        try:
            descriptor = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return not self._stopping.is_set()
        try:
            select.select([descriptor, self._wake], [], [])
        finally:
            os.close(descriptor)
        if self._stopping.is_set():
            return False
        _wait(self._pid, 0)
        return True


def _wait(pid: int, seconds: float) -> bool:
    """Whether a process ended in time; reaps it if it is a child."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if not select.select([descriptor], [], [], seconds)[0]:
                return False
        finally:
            os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True


def _last_line(place: Place) -> str:
    try:
        content = place.output.read_bytes()[-2000:].decode(errors="replace").strip()
    except OSError:
        return "nothing"
    return content.rpartition("\n")[2]
