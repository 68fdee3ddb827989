# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pythons of other versions that this machine may have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PLACES = (Path.home() / ".pyenv" / "versions", Path("/opt/python/versions"))


def find(version: str) -> str | None:
    """A program of that version, wherever it is kept."""
    kept = [p for place in PLACES for p in sorted(place.glob(f"*{version}*/bin/python{version}"))]
    on_path = shutil.which(f"python{version}", path=os.environ.get("PATH", "") + ":/usr/bin")
    real = [str(p) for p in kept] + ([on_path] if on_path and ".pyenv/shims" not in on_path else [])
    return real[0] if real else None
