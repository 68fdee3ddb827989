# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Processes that an engine forgets: those of a container that its OCI runtime made and then could not start.

runsc leaves its two programs behind then, and the engine its shim around them; none of them ends when the
container is removed. On another machine they are that machine's, and nothing is found here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

_PROGRAMS = {
    "runsc-gofer": signal.SIGKILL,
    "runsc-sandbox": signal.SIGKILL,
    "containerd-shim-runc-v2": signal.SIGTERM,
}

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def ended_on_failure(container: str) -> AsyncIterator[None]:
    """Around the start of the container with this id."""
    try:
        yield
    except Exception:
        await asyncio.to_thread(_end, container)
        raise


def _end(container: str) -> None:
    found = {pid: kind for pid in _pids() if (kind := _kind(pid, container))}
    if signal.SIGKILL not in found.values():
        return  # the shim of a runtime that leaves nothing is the engine's to end
    for pid in sorted(found, key=lambda each: found[each] is signal.SIGTERM):  # shims after what they hold
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, found[pid])
    _log.warning("docker.leftovers_ended", container=container, processes=len(found))


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _kind(pid: int, container: str) -> signal.Signals | None:
    """How to end it; None when it is none of this container's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended, or is not ours to see
        return None
    return _PROGRAMS.get(os.path.basename(words[0])) if any(container in word for word in words) else None
