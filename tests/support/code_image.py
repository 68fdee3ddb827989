# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The image of `images/code-interpreter`, built once per machine and recipe, for tests that run on it.

The whole recipe takes a quarter of an hour on a busy machine, most of it for npm's five hundred packages, so
tests build it without what they do not use. CASULO_TEST_WHOLE_IMAGE=1 builds all of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.machine import cannot_run, why_no_local_runtime

RECIPE = Path(__file__).resolve().parents[2] / "images" / "code-interpreter"
NAME = "casulo/code-interpreter:1"
UNUSED = ("npm", "git", "curl", "unzip", "python3-pip", "python3-venv", "python3-scipy", "python3-sklearn")
CACHE = Path.home() / ".cache" / "casulo-tests"


def is_whole() -> bool:
    """Whether the image has everything that its recipe names."""
    return os.environ.get("CASULO_TEST_WHOLE_IMAGE") == "1"


def store() -> Path:
    """The folder of an image store that has the image; built when it is missing or its recipe changed."""
    return _ready("code-image", _recipe(), sorted(RECIPE.glob("*.sh")))


def store_of_suite(suite: str) -> Path:
    """The same for a small image of a Debian suite with its Python."""
    head = f'name = "{suite_name(suite)}"\nbase = "suite:{suite}"\nentrypoint = ["/bin/sleep", "infinity"]\n'
    return _ready(f"python-{suite}", head + '[packages]\napt = ["python3", "procps"]\n', [])


def suite_name(suite: str) -> str:
    """What that image is called."""
    return f"casulo-test/python:{suite}"


def _ready(kind: str, recipe: str, files: list[Path]) -> Path:
    reason = why_no_local_runtime() or ("" if shutil.which("mmdebstrap") else "mmdebstrap is not installed")
    if reason:
        cannot_run(reason)
    parts = [recipe.encode(), *(path.read_bytes() for path in files)]
    place = CACHE / f"{kind}-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = os.open(CACHE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "built").is_file():
            for old in CACHE.glob(f"{kind}-*"):
                shutil.rmtree(old)
            _build(recipe, files, place)
    finally:
        os.close(lock)
    return place / "images"


def _recipe() -> str:
    text = (RECIPE / "image.toml").read_text()
    if is_whole():
        return text
    for name in UNUSED:
        text, found = re.subn(rf'"{re.escape(name)}",?', "", text)
        assert found == 1, f"the recipe does not name {name} any more"
    return text


def _build(recipe: str, files: list[Path], place: Path) -> None:
    source = place / "recipe"
    source.mkdir(parents=True)
    for path in files:
        shutil.copy(path, source)
    (source / "image.toml").write_text(recipe)
    command = [sys.executable, "-m", "casulo.cli", "image", "build", str(source / "image.toml")]
    subprocess.run(command, check=True, env={**os.environ, "CASULO_HOME": str(place)})
    (place / "built").touch()
