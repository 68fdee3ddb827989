# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where the static daemon binaries are; the wheel carries one for each architecture."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from casulo.model.errors import Code, Unsupported

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_FOLDER = Path(__file__).resolve().parent.parent / "_bin"


def host_architecture() -> str:
    """This machine's architecture in OCI spelling."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise Unsupported(
            f"no sandbox daemon exists for the architecture {machine}",
            code=Code.HOST_UNSUPPORTED,
            hint="run the server on amd64 or arm64",
        )
    return _ARCHITECTURES[machine]


def execd_binary(architecture: str) -> Path:
    """Path of the execution daemon for `architecture`; Unsupported when it was not built."""
    path = _FOLDER / f"execd-linux-{architecture}"
    if not path.is_file():
        raise Unsupported(
            f"the execution daemon for linux/{architecture} is missing from this installation",
            code=Code.HOST_UNSUPPORTED,
            hint="in a checkout run `./dev setup`; otherwise reinstall the package",
        )
    return path


def entering_program(architecture: str) -> Path | None:
    """The program that starts others in control groups; None where it was not built. A shell does it too."""
    path = _FOLDER / f"enter-linux-{architecture}"
    return path if path.exists() else None


def statx_library(architecture: str) -> Path | None:
    """What old releases of gVisor preload into programs; None where it was not built."""
    path = _FOLDER / f"statx-linux-{architecture}.so"
    return path if path.is_file() else None


def egress_binary(architecture: str) -> Path:
    """Where the program that enforces network policies is, if it was built."""
    return _FOLDER / f"egress-linux-{architecture}"


def install(store: Path, architecture: str) -> Path:
    """A copy of the daemon below `store` that stays what it is while this server runs.

    The installed file may be replaced by an upgrade at any moment, also between two steps of a
    start. Copies of other versions are removed; sandboxes that run them keep theirs.
    """
    source = execd_binary(architecture)
    content = source.read_bytes()
    path = store / f"execd-{hashlib.sha256(content).hexdigest()[:16]}"
    store.mkdir(parents=True, exist_ok=True)
    for other in store.iterdir():
        if other != path:
            other.unlink()
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.chmod(0o755)
        partial.rename(path)
    return path
