# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Processes of monitors, told apart from whoever has their number later."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from casulo import linux
from casulo.model.errors import RuntimeFailure
from casulo.runtimes.local import watch
from casulo.runtimes.microvm.vmm import Process

_END_SECONDS = 10.0


def is_alive(process: Process) -> bool:
    """Whether the monitor still runs."""
    return linux.start_time(process.pid) == process.started


def kill(process: Process) -> None:
    """End it and wait for that. Idempotent."""
    descriptor = watch.open_process(process.pid, process.started)
    if descriptor is None:
        _reap(process)
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    if not watch.await_end(process.pid, process.started, _END_SECONDS):
        raise RuntimeFailure(f"the monitor's process {process.pid} does not end")
    _reap(process)


def _reap(process: Process) -> None:
    """It may have ended before anybody watched it, and is then still listed as a child of ours."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return
    if fields[0] == "Z" and int(fields[19]) == process.started:
        with contextlib.suppress(ChildProcessError):  # of a server before
            os.waitpid(process.pid, os.WNOHANG)
