# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is common to daemons that wait for their boot message, whichever runtime started them."""

from __future__ import annotations

import socket

from casulo import linux
from casulo.runtimes import bootchannel, processtree


def ready(pid: int, started: int, channel: socket.socket) -> bool:
    """The process is there and not stopped, and has not hung up."""
    return linux.start_time(pid) == started and not processtree.is_stopped(pid) and bootchannel.waits(channel)
