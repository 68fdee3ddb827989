# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Every source file names its licence and says in its first comment what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LICENCE = "SPDX-License-Identifier: Apache-2.0"
HOLDER = "Copyright the Casulo authors"
COMMENT = {".py": "#", ".go": "//", ".sh": "#", ".toml": "#", ".txt": "#"}
WITHOUT_HEADER = ("pyproject.toml", "examples/")


def main() -> int:
    faults = [fault for path in sorted(sources()) for fault in check(path)]
    print("\n".join(faults))
    return 1 if faults else 0


def sources() -> Iterator[Path]:
    """Files that git tracks or would track, of the kinds that carry a header."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listing.stdout.split("\0"):
        path = ROOT / name
        exempt = name.startswith(WITHOUT_HEADER) and path.suffix != ".py"
        if path.suffix in COMMENT and not exempt and path.is_file():
            yield path


def check(path: Path) -> Iterator[str]:
    text = path.read_text()
    mark = COMMENT[path.suffix]
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        del lines[0]
    if lines[:2] != [f"{mark} {LICENCE}", f"{mark} {HOLDER}"]:
        yield f"{path}:1: the two header lines are missing"
    if path.suffix == ".py" and text.strip() and not ast.get_docstring(ast.parse(text)):
        yield f"{path}:1: the module has no docstring"


if __name__ == "__main__":
    sys.exit(main())
