# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Seeing at once that a process ended, whether or not it is a child of this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable

from casulo import linux


class Watch:
    """Calls back on the event loop when watched processes end. Keyed by sandbox id."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._descriptors: dict[str, int] = {}

    def add(self, sandbox_id: str, pid: int, started: int) -> bool:
        """Watch the process with this number and start time; False when it is gone already."""
        if sandbox_id in self._descriptors:
            return True
        descriptor = open_process(pid, started)
        if descriptor is None:
            return False
        self._descriptors[sandbox_id] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, sandbox_id)
        return True

    def drop(self, sandbox_id: str) -> None:
        """Watch no longer. Idempotent."""
        descriptor = self._descriptors.pop(sandbox_id, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Drop everything."""
        for sandbox_id in list(self._descriptors):
            self.drop(sandbox_id)

    def _ended(self, sandbox_id: str) -> None:
        reap(self._descriptors[sandbox_id])
        self.drop(sandbox_id)
        self._on_end(sandbox_id)


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of exactly this process; None when it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Asked after the descriptor is open, so that the number cannot change hands in between.
    if linux.start_time(pid) != started:
        os.close(descriptor)
        return None
    return descriptor


def await_end(pid: int, started: int, timeout: float) -> bool:
    """Block until the process has ended, at most `timeout` seconds; whether it has."""
    descriptor = open_process(pid, started)
    if descriptor is None:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        ended = bool(poller.poll(timeout * 1000))
        if ended:
            reap(descriptor)
        return ended
    finally:
        os.close(descriptor)


def reap(descriptor: int) -> None:
    """Let the kernel forget an ended child; somebody else's child is theirs to reap."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)


def reap_orphans() -> None:
    """Let the kernel forget ended processes that became our children because their parents ended.

    OCI runtimes leave such behind. Processes that this one started are in its own session and are not
    touched: whoever started them waits for them, at once, and then the next look goes on behind them.
    """
    own = os.getsid(0)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if os.getsid(ended.si_pid) == own:
                return
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)
