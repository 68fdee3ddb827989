# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Programs that are started from sealed memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from casulo.runtimes.local.sealedcopy import SealedCopies


def _told(descriptor: int) -> str:
    command = [f"/proc/self/fd/{descriptor}", "here"]
    return subprocess.run(command, pass_fds=[descriptor], capture_output=True, text=True, check=True).stdout


def test_a_copy_runs_and_nothing_can_write_to_it(tmp_path: Path) -> None:
    program = tmp_path / "echo"
    shutil.copy("/bin/echo", program)
    descriptor = SealedCopies().of(program)
    assert descriptor is not None
    assert _told(descriptor) == "here\n"
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)


def test_one_copy_for_all_until_the_program_is_another(tmp_path: Path) -> None:
    program, copies = tmp_path / "program", SealedCopies()
    shutil.copy("/bin/echo", program)
    first = copies.of(program)
    assert copies.of(program) == first
    fresh = tmp_path / "fresh"
    shutil.copy("/bin/true", fresh)
    fresh.rename(program)
    second = copies.of(program)
    assert first is not None
    assert second is not None
    assert second != first
    assert _told(second) == ""
    assert _told(first) == "here\n", "a start that took it before still may use it"
