# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The same benchmark on another revision, in turns on one machine."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_LONGEST_SECONDS = 3600


def compare(name: str, revision: str) -> dict[str, Any]:
    """Figures of both, and how many times as much the revision's are of ours."""
    with _checkout(revision) as there:
        theirs = _measure(there, name)
        ours = _measure(ROOT, name)
    both = ours["figures"].keys() & theirs["figures"].keys()
    ratios = {
        key: _ratio(theirs["figures"][key], ours["figures"][key]) for key in ours["figures"] if key in both
    }
    return {"name": name, "revision": revision, "here": ours, "there": theirs, "there_to_here": ratios}


def table(found: dict[str, Any]) -> str:
    """For people."""
    rows = [("", found["revision"], "here", "ratio")]
    for key, here in found["here"]["figures"].items():
        there = found["there"]["figures"].get(key, "")
        rows.append((key, str(there), str(here), str(found["there_to_here"].get(key, ""))))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def _ratio(there: Any, here: Any) -> float | str:
    usable = isinstance(there, int | float) and isinstance(here, int | float) and here
    return round(there / here, 2) if usable else ""


def _measure(place: Path, name: str) -> dict[str, Any]:
    command = [str(place / "dev"), "bench", name, "--json"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_LONGEST_SECONDS)
    if done.returncode != 0:
        raise SystemExit(f"the benchmark failed in {place}:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """A work tree of the revision, which sets itself up and is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="casulo-bench-versus-") as place:
        there = Path(place) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(there), revision], check=True, timeout=300)
        try:
            yield there
        finally:
            subprocess.run([*git, "remove", "--force", str(there)], check=True, timeout=300)
