# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""An environment of its own for the official clients, and one process in it that runs scenarios."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.official import Official

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-official"
LOCK = ROOT / "requirements" / "official.txt"


@pytest.fixture(scope="session")
def official_bin() -> Path:
    """The folder with the official programs, installed when missing or outdated."""
    stamp, digest = VENV / "installed-from", hashlib.sha256(LOCK.read_bytes()).hexdigest()
    lock = os.open(ROOT / "requirements", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != digest:
            base = getattr(sys, "_base_executable", sys.executable)
            subprocess.run([base, "-m", "venv", "--clear", VENV], check=True)
            pip = [VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", LOCK], check=True)
            stamp.write_text(digest)
    finally:
        os.close(lock)
    return VENV / "bin"


@pytest.fixture(scope="session")
def official(official_bin: Path) -> Iterator[Official]:
    """A living process in that environment, since importing the SDK takes a second."""
    command = [str(official_bin / "python"), str(Path(__file__).with_name("runner.py"))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPEN_SANDBOX_")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Official(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)
