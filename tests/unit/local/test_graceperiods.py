# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the programs of gVisor are started with so that they wait for nothing, as seen by one that is."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys

import pytest

from casulo import linux
from casulo.runtimes.local import graceperiods

LOOK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({number}, 0, 0, 0), ctypes.get_errno())
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("FDSize")])
"""
NUMBER = graceperiods._NUMBERS.get(os.uname().machine)

pytestmark = pytest.mark.skipif(
    NUMBER is None or not linux.has_capability("CAP_SYS_ADMIN"), reason="needs root on amd64 or arm64"
)


def _seen() -> list[str]:
    command = [sys.executable, "-c", LOOK.format(number=NUMBER)]
    with graceperiods.roomy_tables() as more:

        def start() -> str:
            graceperiods.refuse_membarrier()
            return subprocess.run(command, pass_fds=more, check=True, capture_output=True, text=True).stdout

        return linux.in_own_thread(start).split()


def test_a_started_program_has_no_membarrier_and_room_for_files() -> None:
    result, number, room = map(int, _seen())
    assert (result, number) == (-1, errno.ENOSYS)
    assert room > graceperiods.ROOMY


def test_only_that_thread_goes_without() -> None:
    _seen()
    assert ctypes.CDLL(None, use_errno=True).syscall(NUMBER, 0, 0, 0) >= 0
