# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Small Go programs for tests, built where this machine has Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def go_program(folder: Path, source: str) -> bytes | None:
    """The program, without libraries of its own; None where there is no Go."""
    if shutil.which("go") is None:
        return None
    (folder / "main.go").write_text(source)
    command = ["go", "build", "-o", "program", "main.go"]
    subprocess.run(command, cwd=folder, check=True, timeout=170, env={**os.environ, "CGO_ENABLED": "0"})
    return (folder / "program").read_bytes()
