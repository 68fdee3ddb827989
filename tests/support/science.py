# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Packages for the Python of the `host` image, installed once and brought into sandboxes by tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.machine import cannot_run

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "science.txt"
HOST_PYTHON = "/usr/bin/python3"
OLDEST = (3, 11)
UNUSED = ("tests", "__pycache__", "sample_data")


def packages() -> Path:
    """The folder to put on PYTHONPATH; made when it is missing or outdated."""
    told = subprocess.check_output([HOST_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    version = told.decode().strip()
    if tuple(map(int, version.split("."))) < OLDEST:
        cannot_run(f"the packages need Python {OLDEST[0]}.{OLDEST[1]}, {HOST_PYTHON} is {version}")
    digest = hashlib.sha256(LOCK.read_bytes() + version.encode()).hexdigest()[:16]
    place = ROOT / "build" / f"science-{digest}"
    place.parent.mkdir(exist_ok=True)
    lock = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _install(place, version)
    finally:
        os.close(lock)
    return place


def _install(place: Path, version: str) -> None:
    making = place.with_name(f"{place.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    wheels = ["--python-version", version, "--only-binary=:all:", "--target", str(making)]
    subprocess.run([*command, *wheels, "-r", str(LOCK)], check=True)
    for folder in [found for name in UNUSED for found in making.rglob(name)]:
        shutil.rmtree(folder, ignore_errors=True)
    making.rename(place)
