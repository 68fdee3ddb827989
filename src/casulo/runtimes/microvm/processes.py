# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Processes of monitors, told apart from whoever has their number later."""

from __future__ import annotations

import os
import signal

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
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    if not watch.await_end(process.pid, process.started, _END_SECONDS):
        raise RuntimeFailure(f"the monitor's process {process.pid} does not end")
