# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Imports point inwards only: each package of casulo may use the ones listed for it here, no other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "casulo"

# The root module (the version) is open to all.
ALLOWED: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "workers": frozenset(),
    "store": frozenset({"model", "workers"}),
    "linux": frozenset({"model"}),
    "network": frozenset({"model", "linux"}),
    "images": frozenset({"model", "linux", "network"}),
    "runtimes": frozenset({"model", "linux", "workers", "images", "network"}),
    "control": frozenset({"model", "store", "images", "network", "runtimes"}),
    "settings": frozenset({"model", "control", "store", "images", "network", "runtimes"}),
    "api": frozenset({"model", "store", "images", "network", "runtimes", "control", "settings"}),
    "client": frozenset({"model"}),
    "cli": frozenset(
        {"model", "linux", "client", "settings", "api", "control", "runtimes", "images", "network"}
    ),
}
# Where only one module of a package is meant.
ONLY: dict[tuple[str, str], frozenset[str]] = {
    ("client", "model"): frozenset({"casulo.model.errors", "casulo.model.sandbox"})
}
# Third-party packages that must stay at the edge, or outside the core.
AT_THE_EDGE: dict[str, frozenset[str]] = {
    "fastapi": frozenset({"api"}),
    "starlette": frozenset({"api"}),
    "uvicorn": frozenset({"api"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
    "sqlalchemy": frozenset({"store"}),
    "alembic": frozenset({"store"}),
    "pyroute2": frozenset({"network", "runtimes"}),
}


def main() -> int:
    faults = [fault for path in sorted(SOURCE.rglob("*.py")) for fault in check(path)]
    print("\n".join(faults))
    return 1 if faults else 0


def check(path: Path) -> Iterator[str]:
    """One sentence for each import that leaves the permitted direction."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    package = parts[0]
    if package == "__init__":
        return
    if package not in ALLOWED:
        yield f"{path}: package {package!r} has no entry in {Path(__file__).name}"
        return
    for line, name in imported(ast.parse(path.read_text(), str(path)), parts):
        if fault := judge(package, name):
            yield f"{path}:{line}: {fault}"


def judge(package: str, name: str) -> str:
    """Empty when `package` may import `name`."""
    top, _, rest = name.partition(".")
    if top != "casulo":
        edge = AT_THE_EDGE.get(top)
        return f"{top} belongs to {', '.join(sorted(edge))}" if edge and package not in edge else ""
    other = rest.partition(".")[0]
    if other in ("", "__version__", package):
        return ""
    if other not in ALLOWED[package]:
        return f"{package} must not import {name}"
    only = ONLY.get((package, other))
    if only and not any(name == module or name.startswith(module + ".") for module in only):
        return f"{package} may import only {', '.join(sorted(only))} from {other}"
    return ""


def imported(tree: ast.AST, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, late imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(["casulo", *parts[: len(parts) - node.level], *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


if __name__ == "__main__":
    sys.exit(main())
