# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What tests put into sandboxes: a small Go program, built where this machine has Go, and httpx."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path


def go_program(folder: Path, source: str) -> bytes | None:
    """The program, without libraries of its own; None where there is no Go."""
    if shutil.which("go") is None:
        return None
    (folder / "main.go").write_text(source)
    command = ["go", "build", "-o", "program", "main.go"]
    subprocess.run(command, cwd=folder, check=True, timeout=170, env={**os.environ, "CGO_ENABLED": "0"})
    return (folder / "program").read_bytes()


def httpx_library() -> bytes:
    """httpx and what it needs, as one zip that Python imports from."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("httpx", "httpcore", "h11", "anyio", "idna", "certifi", "typing_extensions"):
            spec = find_spec(name)
            assert spec is not None and spec.origin is not None
            origin = Path(spec.origin)
            package = origin.name == "__init__.py"
            root = origin.parents[1] if package else origin.parent
            files = origin.parent.rglob("*.py*") if package else [origin]
            for file in files:
                if file.suffix in (".py", ".pyi"):
                    archive.write(file, file.relative_to(root))
    return packed.getvalue()
