# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Asking a sandbox to end, and reading afterwards how its entrypoint did."""

from __future__ import annotations

from pathlib import Path

import structlog

from casulo.model.sandbox import Exit, Handle
from casulo.runtimes import endings
from casulo.runtimes.local import watch
from casulo.runtimes.local.cgroups import Group

_MAX_EVENTS = 1 << 20
log = structlog.get_logger(__name__)


def ask(group: Group, handle: Handle, grace_seconds: float) -> None:
    """Let the entrypoint end by itself for at most `grace_seconds`; the caller kills the rest.

    A daemon that does not answer is no error: there is then nobody to ask.
    """
    if group.is_frozen():
        group.freeze(False)
    try:
        endings.ask(handle, grace_seconds)
    except OSError as error:
        log.info("stop.not_asked", host=handle.host, error=str(error))
        return
    pid, started = int(handle.data["pid"]), int(handle.data["started"])
    watch.await_end(pid, started, grace_seconds + endings.ASK_TIMEOUT_SECONDS)


def read_exit(events: Path) -> Exit | None:
    """The entrypoint's end as the daemon recorded it; None when it recorded none."""
    try:
        with events.open("rb") as file:
            lines = file.read(_MAX_EVENTS).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    return endings.last_exit(lines)
