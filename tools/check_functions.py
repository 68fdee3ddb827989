# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Functions have at most 50 lines and files at most 400, in Python and in Go.

An exception is a comment on the line above the function (or among the first lines of a file), with
its reason: `# long-function: <why>`, `# long-file: <why>`; in Go the same after `//`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION = 50
LONGEST_FILE = 400
PYTHON_PLACES = ("src", "tests", "tools", "benchmarks", "examples")
EXCEPTION = re.compile(r"(?:#|//)\s*long-(function|file):\s*\S{2,}")
GO_FUNCTION = re.compile(r"^func (?:\([^)]*\) )?(\w+)")


def main() -> int:
    faults = [fault for path in sorted(sources()) for fault in check(path)]
    print("\n".join(faults))
    return 1 if faults else 0


def sources() -> Iterator[Path]:
    for place in PYTHON_PLACES:
        yield from (ROOT / place).rglob("*.py")
    yield from (ROOT / "dataplane").rglob("*.go")
    yield ROOT / "build_hook.py"


def check(path: Path) -> Iterator[str]:
    """One sentence for the file when it is too long, and one for each function that is."""
    lines = path.read_text().splitlines()
    if len(lines) > LONGEST_FILE and not excused(lines[:12], "file"):
        yield f"{path}: {len(lines)} lines, at most {LONGEST_FILE}"
    find = python_functions if path.suffix == ".py" else go_functions
    for name, first, last in find(lines):
        length = last - first + 1
        if length > LONGEST_FUNCTION and not excused(lines[max(0, first - 3) : first - 1], "function"):
            yield f"{path}:{first}: {name} has {length} lines, at most {LONGEST_FUNCTION}"


def excused(lines: list[str], kind: str) -> bool:
    return any((found := EXCEPTION.search(line)) and found.group(1) == kind for line in lines)


def python_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, first line (decorators included in the look-back, not in the length) and last line."""
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def go_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """gofmt puts `func` and the closing brace of top-level functions into column one."""
    first, name = 0, ""
    for number, line in enumerate(lines, 1):
        if found := GO_FUNCTION.match(line):
            first, name = number, found.group(1)
            if line.rstrip().endswith("}"):
                first = 0
        elif first and line == "}":
            yield name, first, number
            first = 0


if __name__ == "__main__":
    sys.exit(main())
