# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server that breaks leaves none of its memory behind, in which credentials are."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from support.machine import cannot_run
from support.server import Server

_FREE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def broken(process: subprocess.Popen[bytes]) -> bool:
    """Break it with all the room for a core file that there can be; whether the kernel wrote one."""
    resource.prlimit(process.pid, resource.RLIMIT_CORE, _FREE)
    process.send_signal(signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = -os.WTERMSIG(status)
    return os.WCOREDUMP(status)


def test_a_server_that_breaks_leaves_no_core(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        cannot_run("only a server of root keeps its memory from core files")
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path)
    if not broken(other):
        cannot_run("this machine writes no core files")
    server = Server(tmp_path / "server", "local").start()
    assert server.process is not None
    assert not broken(server.process)
    assert other.stdin is not None
    other.stdin.close()
