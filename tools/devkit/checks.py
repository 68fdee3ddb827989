# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`./dev lint` and the Go tests. Every check runs, and the failures are counted at the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit import PYTHON, ROOT
from devkit.packages import go_command, gofmt_command
from devkit.shell import Failed, run, say

GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
HOUSE_CHECKS = ("check_imports", "check_functions", "check_headers", "check_locks")


def lint(*, fix: bool = False) -> None:
    """Static checks of both languages and of the house rules."""
    if fix:
        _repair()
    python = str(PYTHON)
    results = [
        _check("ruff check", [python, "-m", "ruff", "check", "--quiet"]),
        _check("ruff format", [python, "-m", "ruff", "format", "--check", "--quiet"]),
        _check("mypy", [python, "-m", "mypy", "--no-error-summary"]),
        *(_check(name, [python, str(ROOT / "tools" / f"{name}.py")]) for name in HOUSE_CHECKS),
        _gofmt(),
        _check("go vet", [go_command(), "vet", "./..."], cwd=ROOT / "dataplane", env=GO_ENVIRONMENT),
    ]
    if failed := results.count(False):
        raise Failed(f"{failed} of {len(results)} checks failed")


def go_tests() -> None:
    say("go test")
    run([go_command(), "test", "-count=1", "./..."], cwd=ROOT / "dataplane", env=GO_ENVIRONMENT)


def _repair() -> None:
    python = str(PYTHON)
    run([python, "-m", "ruff", "check", "--fix", "--quiet", "--exit-zero"])
    run([python, "-m", "ruff", "format", "--quiet"])
    run([gofmt_command(), "-w", "dataplane"])


def _gofmt() -> bool:
    done = subprocess.run([gofmt_command(), "-l", "dataplane"], capture_output=True, text=True, check=False)
    unformatted = (done.stdout + done.stderr).strip()
    return _report("gofmt", not unformatted, unformatted)


def _check(
    name: str, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> bool:
    done = subprocess.run(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return _report(name, done.returncode == 0, done.stdout.strip())


def _report(name: str, good: bool, output: str) -> bool:
    say(f"lint: {name}: {'ok' if good else 'FAILED'}")
    if not good:
        print(output, flush=True)
    return good
