# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A run bears few tests that fail and then pass, and hides none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import unstable

_CONFTEST = """
from support import unstable
def pytest_terminal_summary(terminalreporter): unstable.show(terminalreporter)
def pytest_sessionfinish(session): unstable.judge(session)
"""
_TESTS = """
import pytest
seen = set()
@pytest.mark.parametrize("number", range({count}))
def test_now_and_then(number):
    first = number not in seen
    seen.add(number)
    assert not first, "the first time"
def test_always(): pass
"""


@pytest.mark.parametrize(("count", "status"), [(0, 0), (unstable.MOST, 0), (unstable.MOST + 1, 1)])
def test_a_run_bears_few(tmp_path: Path, count: int, status: int) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_TESTS.format(count=count))
    command = [sys.executable, "-m", "pytest", "--reruns", "1", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(Path(unstable.__file__).parents[1])},
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == status, done.stdout
    assert done.stdout.count("AssertionError: the first time") == count
    assert ("RUN TWICE" in done.stdout) is (count > 0)
