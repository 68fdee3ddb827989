# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What this machine can do, found out without asking the code under test."""

from __future__ import annotations

import os
import platform
import shutil

import pytest

CANNOT_RUN = "CANNOT RUN"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def cannot_run(reason: str) -> None:
    """End the test as neither passed nor failed; the summary names it and the reason."""
    pytest.skip(f"{CANNOT_RUN}: {reason}")


_PROGRAMS = {"local": ("crun", "runc"), "runc": ("runc",), "gvisor": ("runsc",)}


def why_no_local_runtime(engine: str = "local") -> str:
    """Empty when real sandboxes can be started here; then a failure to do so is a failure."""
    if platform.system() != "Linux":
        return "the local runtime needs Linux"
    if os.geteuid() != 0:
        return "the local runtime is tested as root"
    if not any(shutil.which(name, path=_PATH) for name in _PROGRAMS[engine]):
        return f"none of these is installed: {', '.join(_PROGRAMS[engine])}"
    if shutil.which("nft", path=_PATH) is None:
        return "nft is not installed"
    return ""
