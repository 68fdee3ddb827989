# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`./dev build`: a wheel that was imported, in an environment of its own, before anyone else gets it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from devkit import PYTHON, ROOT
from devkit.shell import Failed, run, say

DIST = ROOT / "dist"


def wheel() -> None:
    """Build into dist/ and prove it: client alone first, then with the server."""
    for old in DIST.glob("casulo-*.whl"):
        old.unlink()
    command = [str(PYTHON), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", str(DIST), str(ROOT)], quiet=True)
    built = next(DIST.glob("casulo-*.whl"), None)
    if built is None:
        raise Failed("no wheel came out of the build")
    with tempfile.TemporaryDirectory(prefix="casulo-wheel-") as place:
        _prove(built, Path(place))
    print(built.relative_to(ROOT))


def _prove(built: Path, place: Path) -> None:
    say(f"importing {built.name} in a clean environment")
    run([sys.executable, "-m", "venv", str(place / "venv")], quiet=True)
    pip = [str(place / "venv" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    osb = str(place / "venv" / "bin" / "osb")
    run([*pip, str(built)], cwd=place, quiet=True)
    run([osb, "version"], cwd=place, quiet=True)
    run([*pip, f"{built}[server]"], cwd=place, quiet=True)
    run([osb, "server", "--help"], cwd=place, quiet=True)
    run([osb, "version"], cwd=place, quiet=True)
